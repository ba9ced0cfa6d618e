// What the CPU and the CUDA side of _fused_adam_ and _fused_adamw_ share: the arguments of the operators,
// and the rule about their tensor lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <optional>

#include "tensor_list_args.h"

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

// nullptr, or the reason why upstream runs.
C10_ALWAYS_INLINE const char* decline_fused_adam(at::TensorList params, at::TensorList grads,
                                                 at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                                                 at::TensorList max_exp_avg_sqs, at::TensorList steps,
                                                 bool amsgrad, const std::optional<at::Tensor>& grad_scale,
                                                 const std::optional<at::Tensor>& found_inf) {
  if (amsgrad) {
    return decline_tensor_lists(params, grads, {exp_avgs, exp_avg_sqs, max_exp_avg_sqs}, &steps, grad_scale,
                                found_inf);
  }
  if (!params.empty() && !max_exp_avg_sqs.empty()) {
    return "lists of different lengths";
  }
  return decline_tensor_lists(params, grads, {exp_avgs, exp_avg_sqs}, &steps, grad_scale, found_inf);
}

}  // namespace aten_ext
