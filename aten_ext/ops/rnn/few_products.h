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

// Of the input of a whole layer in fp32, padded: rows are steps times batch, and the kernel reads the weights
// once for eight of them.
constexpr int64_t kMostProjectedRows = 128;

constexpr bool is_few_rows_projection(int64_t rows, double weights) {
  return rows <= kMostProjectedRows && are_few_products(rows, weights, /*sixteen_bits=*/false);
}

}  // namespace aten_ext::cuda
