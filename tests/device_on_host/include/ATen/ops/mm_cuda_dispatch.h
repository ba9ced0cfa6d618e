// Stands in for PyTorch's: a GEMM of CPU tensors.
#pragma once

#include <ATen/ops/mm.h>

namespace at::cuda {
inline Tensor mm(const Tensor& self, const Tensor& mat2) {
  return at::mm(self, mat2);
}
inline Tensor mm(const Tensor& self, const Tensor& mat2, ScalarType out_dtype) {
  return at::mm(self.to(out_dtype), mat2.to(out_dtype));
}
}  // namespace at::cuda
