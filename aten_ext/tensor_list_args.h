// What the fused optimizer steps share on the ATen side of both devices: the rule about their tensor lists.
// A step has a list of parameters, one of gradients, and lists of states; element i of a parameter is updated
// from element i of each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <initializer_list>
#include <optional>

#include "checks.h"
#include "floating_dtype.h"

namespace aten_ext {

inline bool is_floating_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

// Of a dtype that is_floating_dtype() holds for.
inline FloatingDtype to_floating_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return FloatingDtype::Double;
    case at::kBFloat16:
      return FloatingDtype::BFloat16;
    case at::kHalf:
      return FloatingDtype::Half;
    default:
      return FloatingDtype::Float;
  }
}

// The first reason why `t` cannot be taken for a flat array beside `param`, or nullptr.
C10_ALWAYS_INLINE const char* decline_list_tensor(const at::Tensor& t, const at::Tensor& param,
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

// nullptr when every list is what a flat kernel needs: for each parameter, the gradient and the states are
// dense, of its dtype, device, sizes and strides, so that element i is the same index in all. Otherwise the
// reason. Where upstream raises an error, it is upstream that must raise it.
//
// `states` are the lists that have one tensor for each parameter; a list that this call has no use for is
// the caller's to check. `steps` counts each parameter's steps, or is nullptr where the operator has none.
C10_ALWAYS_INLINE const char* decline_tensor_lists(at::TensorList params, at::TensorList grads,
                                                   std::initializer_list<at::TensorList> states,
                                                   const at::TensorList* steps,
                                                   const std::optional<at::Tensor>& grad_scale,
                                                   const std::optional<at::Tensor>& found_inf) {
  const size_t count = params.size();
  if (count == 0) {
    return "no tensors";
  }
  bool same_lengths = grads.size() == count && (steps == nullptr || steps->size() == count);
  for (const at::TensorList state : states) {
    same_lengths = same_lengths && state.size() == count;
  }
  if (!same_lengths) {
    return "lists of different lengths";
  }
  if (!params[0].defined()) {
    return "undefined tensor";
  }
  if (!is_floating_dtype(params[0].scalar_type())) {
    return "dtype other than float32, float16, bfloat16, float64";
  }
  const caffe2::TypeMeta dtype = params[0].dtype();
  const at::Device device = params[0].device();
  for (size_t i = 0; i < count; ++i) {
    if (steps != nullptr && !is_float_scalar((*steps)[i], device)) {
      return "step that is not one float32 on the parameters' device";
    }
    const at::Tensor& param = params[i];
    const char* reason = decline_list_tensor(param, param, dtype, device);
    reason = reason ? reason : decline_list_tensor(grads[i], param, dtype, device);
    for (const at::TensorList state : states) {
      reason = reason ? reason : decline_list_tensor(state[i], param, dtype, device);
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

// Fills the kernel's list: a row for each parameter that has elements. `add(i, numel)` makes the row of
// parameter i, with all but the first two lists of every optimizer (kParam and kGrad), which are noted here.
template <typename AddRow>
void add_rows(at::TensorList params, at::TensorList grads, bool unscales, const AddRow& add) {
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t numel = params[i].numel();
    if (numel == 0) {
      continue;
    }
    auto& row = add(i, numel);
    row.data[0] = params[i].mutable_data_ptr();
    // Read only, unless it is unscaled: a copy-on-write gradient is then not copied.
    row.data[1] = unscales ? grads[i].mutable_data_ptr() : const_cast<void*>(grads[i].const_data_ptr());
  }
}

// Where the one float32 is, or nullptr for none.
inline const float* float_pointer(const std::optional<at::Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<float>() : nullptr;
}

// The learning rate of a .tensor_lr overload at CPU, which is read on the host.
inline const char* decline_cpu_lr(const at::Tensor& lr, at::Device device) {
  return is_number(lr, device) ? nullptr : "lr that is not one number on the parameters' device";
}

// The same at CUDA: read on the device by the kernel, or on the host if it lives there (as upstream does).
inline const char* decline_cuda_lr(const at::Tensor& lr, at::Device device) {
  if (lr.defined() && lr.is_cpu() && is_number(lr, lr.device())) {
    return nullptr;
  }
  return is_float_scalar(lr, device)
             ? nullptr
             : "lr that is neither one number on the CPU nor one float32 on the device";
}

}  // namespace aten_ext
