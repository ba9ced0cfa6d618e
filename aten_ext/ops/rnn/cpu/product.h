// Matrix products over all steps of a layer, by the library of torch's that is fastest here.
#pragma once

#include <ATen/core/Tensor.h>

namespace aten_ext::cpu {

// x w^T + bias; an undefined bias is none. Any strides.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias = {});

// a^T b, of two tall matrices: the gradient of a weight.
at::Tensor gradient_product(const at::Tensor& a, const at::Tensor& b);

// a b.
inline at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return linear_product(a, b.t());
}

}  // namespace aten_ext::cpu
