// Bridge to the sums of a matrix's columns (column_sums.cu): the gradients of biases. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "core/math.h"

namespace aten_ext::cuda {

// A matrix [rows, columns], contiguous: its rows are summed, and the first columns of the sum may go to a
// second place, too.
struct SummedMatrix {
  const void* from;
  int64_t columns;
  void* to;
  void* second;  // nullptr: there is none
  int64_t second_columns;
};

struct ColumnSums {
  SummedMatrix matrix[4];
  int count;
  Dtype dtype;  // of all of them; sums are in fp32, and rounded once
  int64_t rows;
  int64_t columns;  // of the widest
  float* partial;   // partial_sums() of them
};

constexpr int kSumColumns = 128;  // of a block
constexpr int kSumRows = 256;     // of a block, at least
constexpr int64_t kSumBlocks = 512;

// Parts that the rows are summed in: always the same for the same sizes, so that the bits are.
inline int64_t sum_parts(int count, int64_t rows, int64_t columns) {
  const int64_t blocks = ceil_div(columns, int64_t{kSumColumns}) * count;
  return std::max<int64_t>(1, std::min(rows / kSumRows, ceil_div(kSumBlocks, blocks)));
}
inline int64_t partial_sums(int count, int64_t rows, int64_t columns) {
  const int64_t parts = sum_parts(count, rows, columns);
  return parts > 1 ? count * parts * columns : 0;
}

cudaError_t launch_column_sums(const ColumnSums& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
