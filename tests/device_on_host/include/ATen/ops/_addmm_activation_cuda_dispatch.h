// Stands in for PyTorch's: of CPU tensors. GELU is the tanh form, as on CUDA.
#pragma once

#include <ATen/ops/addmm.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>

namespace at::cuda {
inline Tensor& _addmm_activation_out(Tensor& out, const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                                     const Scalar& beta, const Scalar& alpha, bool use_gelu) {
  at::addmm_out(out, self, mat1, mat2, beta, alpha);
  return use_gelu ? at::gelu_(out, "tanh") : at::relu_(out);
}
}  // namespace at::cuda
