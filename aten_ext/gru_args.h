// What the overrides of the GRU family share: the arguments of the operators, and rules about their tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "checks.h"

namespace aten_ext {

// cudnnRNNMode_t's value for a GRU, as PyTorch passes it.
constexpr int64_t kCudnnGru = 3;

// Absent and undefined are the same thing: a caller in C++ passes the latter.
inline bool is_given(const std::optional<at::Tensor>& t) {
  return t.has_value() && t->defined();
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

inline bool is_gru_dtype(const at::Tensor& t) {
  return t.scalar_type() == at::kFloat || t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

}  // namespace aten_ext
