// What the CPU and the CUDA side of _fused_adam_ and _fused_adamw_ share: the arguments of the operators,
// and the rule about their tensor lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <optional>

#include "checks.h"

// Each operator has an overload whose learning rate is a double and one where it is a tensor; otherwise
// the arguments of all four are the same, in the same order.
#define ATEN_EXT_FUSED_ADAM_PARAMETERS(LrType)                                                          \
  [[maybe_unused]] at::TensorList params, [[maybe_unused]] at::TensorList grads,                        \
      [[maybe_unused]] at::TensorList exp_avgs, [[maybe_unused]] at::TensorList exp_avg_sqs,            \
      [[maybe_unused]] at::TensorList max_exp_avg_sqs, [[maybe_unused]] at::TensorList steps,           \
      [[maybe_unused]] LrType lr, [[maybe_unused]] double beta1, [[maybe_unused]] double beta2,         \
      [[maybe_unused]] double weight_decay, [[maybe_unused]] double eps, [[maybe_unused]] bool amsgrad, \
      [[maybe_unused]] bool maximize, [[maybe_unused]] const std::optional<at::Tensor>&grad_scale,      \
      [[maybe_unused]] const std::optional<at::Tensor>&found_inf

namespace aten_ext {

struct FusedAdamScalars {
  double lr, beta1, beta2, weight_decay, eps;
  bool decoupled;  // AdamW's decay of the parameter itself, not Adam's addition to the gradient
  bool amsgrad, maximize;
};

// The first reason why `t` cannot be taken for a flat array beside `param`, or nullptr.
C10_ALWAYS_INLINE const char* decline_fused_adam_tensor(const at::Tensor& t, const at::Tensor& param,
                                                        caffe2::TypeMeta dtype, at::Device device) {
  if (t.dtype() != dtype) {  // an undefined tensor's is like no other
    return t.defined() ? "more than one dtype" : "undefined tensor";
  }
  if (t.device() != device) {
    return "more than one device";
  }
  if (!is_dense(t)) {
    return "tensor that is not dense";
  }
  return same_geometry(param, t) ? nullptr : "shapes or strides that differ between the lists";
}

// nullptr when every list is what a flat kernel needs: for each parameter, the gradient and the states
// are dense, of its dtype, device, sizes and strides, so that element i is the same index in all.
// Otherwise the reason. Where upstream raises an error, it is upstream that must raise it.
C10_ALWAYS_INLINE const char* decline_fused_adam(at::TensorList params, at::TensorList grads,
                                                 at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                                                 at::TensorList max_exp_avg_sqs, at::TensorList steps,
                                                 bool amsgrad, const std::optional<at::Tensor>& grad_scale,
                                                 const std::optional<at::Tensor>& found_inf) {
  const size_t count = params.size();
  if (count == 0) {
    return "no tensors";
  }
  if (grads.size() != count || exp_avgs.size() != count || exp_avg_sqs.size() != count ||
      steps.size() != count || max_exp_avg_sqs.size() != (amsgrad ? count : 0)) {
    return "lists of different lengths";
  }
  if (!params[0].defined()) {
    return "undefined tensor";
  }
  const at::ScalarType scalar_type = params[0].scalar_type();
  if (scalar_type != at::kFloat && scalar_type != at::kBFloat16 && scalar_type != at::kHalf &&
      scalar_type != at::kDouble) {
    return "dtype other than float32, float16, bfloat16, float64";
  }
  const caffe2::TypeMeta dtype = params[0].dtype();
  const at::Device device = params[0].device();
  for (size_t i = 0; i < count; ++i) {
    if (!is_float_scalar(steps[i], device)) {
      return "step that is not one float32 on the parameters' device";
    }
    const at::Tensor& param = params[i];
    const char* reason = decline_fused_adam_tensor(param, param, dtype, device);
    reason = reason ? reason : decline_fused_adam_tensor(grads[i], param, dtype, device);
    reason = reason ? reason : decline_fused_adam_tensor(exp_avgs[i], param, dtype, device);
    reason = reason ? reason : decline_fused_adam_tensor(exp_avg_sqs[i], param, dtype, device);
    if (amsgrad && reason == nullptr) {
      reason = decline_fused_adam_tensor(max_exp_avg_sqs[i], param, dtype, device);
    }
    if (reason != nullptr) {
      return reason;
    }
  }
  if (!is_float_scalar_or_none(grad_scale, device) || !is_float_scalar_or_none(found_inf, device)) {
    return "grad_scale or found_inf that is not one float32 on the parameters' device";
  }
  return nullptr;
}

}  // namespace aten_ext
