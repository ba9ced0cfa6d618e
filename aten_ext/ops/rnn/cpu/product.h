// Matrix products over all steps of a layer, by the library of torch's that is fastest here.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace aten_ext::cpu {

// In how large parts a sum is made where the library would add up all products one after the other. Smaller
// parts take longer and round less.
struct SumParts {
  int64_t products;  // of the product with a weight
  int64_t rows;      // of a weight's gradient
};

// As MKL does, and as upstream's composition, which sums a weight's gradient step by step.
inline constexpr SumParts kPartsOfComposition{192, 64};
// As oneDNN's LSTM.
inline constexpr SumParts kPartsOfOnednn{192, 256};

// Whether the machine has instructions that multiply bfloat16; without them float32 is faster.
bool multiplies_bfloat16();

// A tensor of 16 bits as products take it, and what a product of such is made from: as it is, or float32.
inline at::Tensor as_factor(const at::Tensor& t, bool bfloat16) {
  return bfloat16 ? t.to(multiplies_bfloat16() ? at::kBFloat16 : at::kFloat) : t;
}

// x w^T + bias; an undefined bias is none. Any strides. Factors of one dtype, which the result has.
at::Tensor linear_product(const SumParts& sum_parts, const at::Tensor& x, const at::Tensor& w,
                          const at::Tensor& bias = {});

// a^T b, of two tall matrices: the gradient of a weight.
at::Tensor gradient_product(const SumParts& sum_parts, const at::Tensor& a, const at::Tensor& b);

// a b + bias, of matrices; an undefined bias is none. Of fp32 in fp32, whatever less is allowed by now: a
// backward keeps to what its forward was chosen for.
at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

// out = a b, likewise.
void multiply_to(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

// sum += a b, likewise.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// a b.
inline at::Tensor product(const SumParts& sum_parts, const at::Tensor& a, const at::Tensor& b) {
  return linear_product(sum_parts, a, b.t());
}

}  // namespace aten_ext::cpu
