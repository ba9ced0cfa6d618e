// Twin of aten_ext/cuda/tf32_product.h: in fp32, which a tolerance for TF32 covers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

namespace aten_ext::cuda {

inline at::Tensor tf32_product(const at::Tensor& rows, const at::Tensor& w) {
  return at::mm(rows, w.t());
}

}  // namespace aten_ext::cuda
