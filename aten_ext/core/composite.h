// Overrides of composite operators: when a call must take PyTorch's decomposition.
//
// PyTorch has no kernel for such an operator (gru_cell): it is a function of other operators, run at whatever
// key comes first, so that autograd, functorch, functionalisation and tensor subclasses see the parts. A
// kernel at a backend key takes that away. The generated entry at Autograd<backend> gives it back
// (scripts/codegen.py, _composite_entry).
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>

namespace aten_ext {

// Whether someone differentiates through the tensor, backward or forward.
inline bool is_differentiated(const at::Tensor& t) {
  return t.defined() &&
         ((c10::GradMode::is_enabled() && t.requires_grad()) || t._fw_grad(/*level=*/0).defined());
}
inline bool is_differentiated(const std::optional<at::Tensor>& t) {
  return t.has_value() && is_differentiated(*t);
}
inline bool is_differentiated(at::TensorList list) {
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return is_differentiated(t); });
}
template <typename NoTensor>
bool is_differentiated(const NoTensor& /*argument*/) {
  return false;
}

// `keys`: those of the call, as its kernel at the Autograd key gets them. Anything but the plain backend
// after autograd (a mode, functionalisation, a tensor subclass, a quantised or sparse tensor) is not ours.
inline bool is_plain(c10::DispatchKeySet keys, c10::DispatchKey backend) {
  return (keys & c10::after_ADInplaceOrView_keyset).highestPriorityTypeId() == backend;
}

template <typename... Arguments>
bool needs_decomposition(c10::DispatchKeySet keys, c10::DispatchKey backend, const Arguments&... arguments) {
  return !is_plain(keys, backend) || (is_differentiated(arguments) || ...);
}

}  // namespace aten_ext
