// Predicates that decline() functions share. Pure and cheap: no allocation, no synchronisation, no
// reading of a tensor's memory. They compare devices with each other and never with "is CUDA", so that
// aten_ext.explain() can ask about a GPU with tensors on the meta device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <optional>

namespace aten_ext {

// Elements lie in one piece of memory, each once, in some order of dimensions.
inline bool is_dense(const at::Tensor& t) {
  return t.layout() == at::kStrided && t.is_non_overlapping_and_dense();
}

// The same sizes, and the same strides wherever a stride matters: in two dense tensors of which this holds,
// element i of the memory has the same index in both.
inline bool same_geometry(const at::Tensor& a, const at::Tensor& b) {
  const at::IntArrayRef sizes = a.sizes();
  const at::IntArrayRef other = b.sizes();
  if (sizes.size() != other.size()) {
    return false;
  }
  // Not ==, which calls memcmp for a handful of numbers: lists have thousands of tensors.
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != other[d]) {
      return false;
    }
  }
  if (a.is_contiguous() && b.is_contiguous()) {
    return true;
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a.strides()[d] != b.strides()[d]) {
      return false;
    }
  }
  return true;
}

// One float32 on `device`.
C10_ALWAYS_INLINE bool is_float_scalar(const at::Tensor& t, at::Device device) {
  return t.defined() && t.scalar_type() == at::kFloat && t.numel() == 1 && t.device() == device &&
         t.layout() == at::kStrided;
}

// One number of any dtype on `device`.
inline bool is_number(const at::Tensor& t, at::Device device) {
  return t.defined() && t.numel() == 1 && t.device() == device && t.layout() == at::kStrided;
}

// Absent, or one float32 on `device`.
inline bool is_float_scalar_or_none(const std::optional<at::Tensor>& t, at::Device device) {
  return !t.has_value() || is_float_scalar(*t, device);
}

}  // namespace aten_ext
