// Where upstream is faster: numbers, and nothing of how the ways work. Standard library only.
//
// Measured on an H200 against torch 2.11, with weights read from memory (docs/kernels/linear.md). A cell of
// the table decides where there is one; elsewhere the bounds below, which are older. Where they are equal, or
// nothing between two measured shapes was measured, upstream stays.
#pragma once

#include <cstdint>

#include "ops/linear/crossover_table.h"

namespace aten_ext {

// Numbers of weights.
inline constexpr int64_t kTinyWeight = 1 << 16;
inline constexpr int64_t kMediumFloatWeight = int64_t{768} * 3072;
inline constexpr int64_t kLargeFloatWeightThatWins = int64_t{4096} * 4096;  // one size, without a bias
inline constexpr int64_t kLargeWeight16Rows = 1 << 24;
inline constexpr int64_t kLargeWeight32Rows = 1 << 22;
inline constexpr int64_t kWideFloatRow = 16384;  // columns

struct Range {
  int64_t from, to;
  constexpr bool holds(int64_t x) const {
    return x >= from && x <= to;
  }
};
// 16 bits, more than 32 rows: the layers where the kernel is faster.
inline constexpr Range kDeepN{768, 1024}, kDeepK{2048, 3072};
inline constexpr Range kWideN{2048, 3072}, kWideK{512, 768};

// The kernel for few rows. out[m, n] = mat1[m, k] * mat2[k, n]; `transposed`: mat2 is [n, k] in memory. m
// from 1 to 64.
constexpr bool upstream_multiplies_faster(int64_t m, int64_t n, int64_t k, bool is_float, bool transposed,
                                          bool has_bias) {
  for (const CrossoverCell& cell : kCrossoverCells) {
    if (!cell.is_ours() && cell.holds(m, n, k, is_float)) {
      return true;
    }
  }
  const int64_t weight = n * k;
  if (is_float && m > 32 && !has_bias) {
    return weight > kMediumFloatWeight && weight != kLargeFloatWeightThatWins;
  }
  if (is_float) {
    return m == 1 && (n > kWideFloatRow || (!transposed && weight > kMediumFloatWeight));
  }
  if (m > 32) {
    return !(kDeepN.holds(n) && kDeepK.holds(k)) && !(kWideN.holds(n) && kWideK.holds(k));
  }
  if (m > 16 && weight < kTinyWeight) {
    return true;
  }
  // Rows of the result that are no whole vectors of 16 bytes are slow upstream.
  const int64_t max_weight = m <= 8                                ? INT64_MAX
                             : m <= 16 || (has_bias && transposed) ? kLargeWeight16Rows
                                                                   : kLargeWeight32Rows;
  return n % 8 == 0 && weight > max_weight;
}

// cuBLASLt: 64 x 64 in float32 and 256 rows take upstream 13.2 us, ours 13.7; with 65 rows 13.0 and 13.1.
constexpr bool upstream_asks_lt_faster(int64_t m, int64_t n, int64_t k, bool is_float) {
  return is_float && m >= 128 && n * k < kTinyWeight;
}

}  // namespace aten_ext
