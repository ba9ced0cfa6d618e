// Rules about tensors that the overrides of the family share.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>

namespace aten_ext::cuda {

// Absent and undefined are the same thing: a caller in C++ passes the latter.
inline bool is_given(const std::optional<at::Tensor>& t) {
  return t.has_value() && t->defined();
}

inline const void* data_of(const std::optional<at::Tensor>& t) {
  return is_given(t) ? t->const_data_ptr() : nullptr;
}

// The first reason why a tensor cannot be read beside `first`, or nullptr.
inline const char* decline_beside(const at::Tensor& t, const at::Tensor& first) {
  if (!t.defined()) {
    return "undefined tensor";
  }
  if (t.layout() != at::kStrided) {
    return "tensor that is not strided";
  }
  if (t.dtype() != first.dtype()) {
    return "more than one dtype";
  }
  return t.device() == first.device() ? nullptr : "more than one device";
}

inline bool has_shape(const at::Tensor& t, std::initializer_list<int64_t> shape) {
  return t.sizes() == at::IntArrayRef(shape);
}

inline bool is_rnn_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

}  // namespace aten_ext::cuda
