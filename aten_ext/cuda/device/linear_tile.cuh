// Tiles of the operands of a linear layer in shared memory, filled with 16-byte asynchronous copies.
//
// Rows of a tile are 16 bytes longer than what they hold: eight rows at the same place then lie in eight
// different groups of banks, so that neither vector loads down a column of rows nor ldmatrix wait for one
// another (the rows hold 128 or 256 bytes, or 64 in the narrow tile, whose rows step through the groups too).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/async_copy.cuh"

namespace aten_ext::cuda {

template <typename T, int rows, int columns>
struct LinearTile {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kStride = columns + kVector;  // elements from row to row
  static constexpr int kElements = rows * kStride;
  static constexpr int kVectorsInRow = columns / kVector;
  static_assert(columns % kVector == 0);

  // A block copies so many rows at once, a thread one vector of each of them.
  template <int threads>
  static constexpr int kRowsAtOnce = threads / kVectorsInRow;

  // Which vector is this thread's: the first of its rows, and the column.
  static __device__ __forceinline__ int first_row() {
    return static_cast<int>(threadIdx.x) / kVectorsInRow;
  }
  static __device__ __forceinline__ int column() {
    return static_cast<int>(threadIdx.x) % kVectorsInRow * kVector;
  }

  // Starts copying what there is of [rows, columns]; what lies outside of `rows_left` and `columns_left`
  // becomes zero. `from` is this thread's first vector in global memory, whose rows are `stride` elements
  // apart. All `threads` of the block.
  template <int threads>
  static __device__ __forceinline__ void copy(T* tile, const T* from, int64_t stride, int rows_left,
                                              int columns_left) {
    static_assert(threads % kVectorsInRow == 0);
    constexpr int kAtOnce = kRowsAtOnce<threads>;
    const int left = column() < columns_left ? rows_left - first_row() : 0;
    T* to = tile + first_row() * kStride + column();
#pragma unroll
    for (int i = 0; i < rows; i += kAtOnce) {
      if (rows % kAtOnce == 0 || first_row() + i < rows) {
        copy_async_16_or_zero(to + i * kStride, from + i * stride, i < left);
      }
    }
  }
};

}  // namespace aten_ext::cuda
