// The rule about the tensor lists of a fused optimizer step, for both devices. A step has a list of
// parameters, one of gradients, and lists of states; element i of a parameter is updated from element i of
// each.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

#include "core/checks.h"
#include "ops/optimizer/overlap.h"

namespace aten_ext {

inline bool is_floating_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
}

// What one pass over the lists finds.
struct Inspected {
  const char* reason = nullptr;  // why upstream runs; nullptr: nothing speaks against the fused step
  int64_t elements = 0;          // of all parameters
};

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

// Whether the step would write memory that it also reads or writes elsewhere. Gradients are written where
// they are unscaled; step counters are another operator's to write.
inline bool lists_overlap(at::TensorList params, at::TensorList grads,
                          std::initializer_list<at::TensorList> states, bool unscales) {
  constexpr size_t kMost = 5;  // Adam with amsgrad
  std::array<at::TensorList, kMost> lists;
  TORCH_INTERNAL_ASSERT_DEBUG_ONLY(states.size() + 2 <= kMost);
  lists[0] = params;
  std::copy(states.begin(), states.end(), lists.begin() + 1);
  lists[states.size() + 1] = grads;
  const overlap::Lists all(lists.data(), states.size() + 2);
  const size_t written = unscales ? all.size() : all.size() - 1;
  return overlap::writes_overlap(all.slice(0, written), all.slice(written), params[0].itemsize());
}

// No reason when every list is what a flat kernel needs: for each parameter, the gradient and the states are
// dense, of its dtype, device, sizes and strides, so that element i is the same index in all. Where upstream
// raises an error, it is upstream that must raise it.
//
// `states` are the lists that have one tensor for each parameter; a list that this call has no use for is
// the caller's to check. `steps` counts each parameter's steps, or is nullptr where the operator has none.
//
// Lists by reference, and word by word where they are copied: the entry has just stored them so, and a load
// of both words at once would have to wait until that is in the cache.
template <class... Lists>
C10_ALWAYS_INLINE Inspected inspect_lists(const at::TensorList& params, const at::TensorList& grads,
                                          const at::TensorList* steps,
                                          const std::optional<at::Tensor>& grad_scale,
                                          const std::optional<at::Tensor>& found_inf,
                                          const Lists&... states) {
  const size_t count = params.size();
  if (count == 0) {
    return {"no tensors"};
  }
  if (grads.size() != count || (steps != nullptr && steps->size() != count) ||
      ((states.size() != count) || ...)) {
    return {"lists of different lengths"};
  }
  if (!params[0].defined()) {
    return {"undefined tensor"};
  }
  if (!is_floating_dtype(params[0].scalar_type())) {
    return {"dtype other than float32, float16, bfloat16, float64"};
  }
  const caffe2::TypeMeta dtype = params[0].dtype();
  const at::Device device = params[0].device();
  int64_t elements = 0;
  for (size_t i = 0; i < count; ++i) {
    if (steps != nullptr && !is_float_scalar((*steps)[i], device)) {
      return {"step that is not one float32 on the parameters' device"};
    }
    const at::Tensor& param = params[i];
    const char* reason = decline_list_tensor(param, param, dtype, device);
    reason = reason ? reason : decline_list_tensor(grads[i], param, dtype, device);
    ((reason = reason ? reason : decline_list_tensor(states[i], param, dtype, device)), ...);
    if (reason != nullptr) {
      return {reason};
    }
    elements += param.numel();
  }
  if (!is_float_scalar_or_none(grad_scale, device) || !is_float_scalar_or_none(found_inf, device)) {
    return {"grad_scale or found_inf that is not one float32 on the parameters' device"};
  }
  if (lists_overlap({params.data(), count}, {grads.data(), count}, {at::TensorList(states.data(), count)...},
                    grad_scale.has_value())) {
    return {"tensors that share memory"};
  }
  return {nullptr, elements};
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

// The learning rate is a number, or a tensor in the .tensor_lr overloads.
inline double lr_value(double lr) {
  return lr;
}
inline double lr_value(const at::Tensor& lr) {
  return lr.item().toDouble();
}

}  // namespace aten_ext
