// What a product through cuBLASLt depends on. Standard library only.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/linear/epilogue.h"

namespace aten_ext::cuda {

// What a sum that is split may be reduced in: anything; fp32; it may not be split.
enum class LtReduction : uint8_t { Any, ComputeType, None };

// Everything that upstream tells the heuristic about out[m, n] = epilogue(alpha * mat1[m, k] * mat2[k, n] +
// bias[n]), out contiguous. Two calls with equal keys get the same algorithm.
struct LtKey {
  int64_t m, n, k;
  int64_t mat1_stride, mat2_stride;  // in elements, between rows, or between columns if transposed
  int16_t device;
  Dtype dtype;        // Float, Half or BFloat16
  Epilogue epilogue;  // after the bias
  LtReduction reduction;
  bool tf32;
  bool mat1_is_transposed, mat2_is_transposed;  // columns of elements side by side, instead of rows
  uint8_t mat1_alignment, mat2_alignment, bias_alignment, out_alignment;  // see log2_alignment
  uint8_t unused[4];                                                      // padding with a name: zero
};

// The logarithm of the alignment of an address in bytes, of 256 at most, which is what upstream reports.
inline uint8_t log2_alignment(uintptr_t address) {
  uint8_t exponent = 0;
  while (exponent < 8 && address % (uintptr_t{2} << exponent) == 0) {
    ++exponent;
  }
  return exponent;
}

// How many of cuBLASLt's answers a thread remembers: more than a model has kinds of layers. About 700 bytes
// each.
constexpr int kMaxLtProducts = 256;

}  // namespace aten_ext::cuda
