// Stands in for PyTorch's: of CPU tensors.
#pragma once

#include <ATen/ops/addmm.h>

namespace at::cuda {
inline Tensor& addmm_out(Tensor& out, const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                         const Scalar& beta, const Scalar& alpha) {
  return at::addmm_out(out, self, mat1, mat2, beta, alpha);
}
}  // namespace at::cuda
