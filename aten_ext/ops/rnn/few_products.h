// Products so small that a library's take longer than kernels of our own (training/few_rows.h), whatever
// their rows. Standard library only.
#pragma once

#include <cstdint>

namespace aten_ext::cuda {

constexpr double kFewProducts = 12e6;              // multiply-adds
constexpr double kFewWeights[2] = {1.3e6, 0.5e6};  // fp32, 16 bits

constexpr bool are_few_products(int64_t rows, double weights, bool sixteen_bits) {
  return weights <= kFewWeights[sixteen_bits] && static_cast<double>(rows) * weights <= kFewProducts;
}

}  // namespace aten_ext::cuda
