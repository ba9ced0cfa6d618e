// Stands in for PyTorch's: of CPU tensors.
#pragma once

#include <ATen/ops/cat.h>

namespace at::cuda {
inline Tensor& cat_out(Tensor& out, const ITensorListRef& tensors, int64_t dim) {
  return at::cat_out(out, tensors, dim);
}
}  // namespace at::cuda
