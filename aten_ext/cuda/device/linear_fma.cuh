// The product of two fp32 tiles with fused multiply-adds: partial[m][n] = sum over k of x[m][k] * w[n][k].
//
// A warp's lanes form a grid of kRowLanes x kColumnLanes, each with kThreadRows x kThreadColumns sums in
// registers. For four k a lane loads kThreadRows + kThreadColumns vectors of 16 bytes and does 4 *
// kThreadRows
// * kThreadColumns multiply-adds: 16 loads for 256 with 32 and 64 rows of x. A multiprocessor does four
// warps' multiply-adds a clock and, if no two lanes of a warp read the same, a quarter of such a load; lanes
// of one row or column do read the same, so the loads stay below the multiply-adds.
//
// Neighbouring lanes take neighbouring rows (see linear_tile.cuh: no bank conflicts), and the warps of a
// group take turns with the k of a tile.
#pragma once

#include <cuda_runtime.h>

#include "cuda/device/linear_tile.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

// x is [rows, depth]; w is [columns, depth], or [depth, columns] if not `transposed`.
template <bool transposed, int rows, int columns, int depth, int warps>
class FmaProduct {
 public:
  using X = LinearTile<float, rows, depth>;
  using W = LinearTile<float, transposed ? columns : depth, transposed ? depth : columns>;

  static constexpr int kThreadRows = rows < 8 ? rows : 8;
  static constexpr int kRowLanes = rows / kThreadRows;
  static constexpr int kColumnLanes = 32 / kRowLanes;
  // As many columns as make 64 sums, but not more than the tile has.
  static constexpr int kWarpColumns = rows == 64 ? 32 : 64;
  static constexpr int kThreadColumns = kWarpColumns / kColumnLanes;
  static constexpr int kColumnGroups = columns / kWarpColumns;
  static constexpr int kDepthGroups = warps / kColumnGroups;
  // partial is [kDepthGroups][rows][kPartialStride]; lanes of different rows write to different banks.
  static constexpr int kPartialStride = columns + (kRowLanes > 1 ? kColumnLanes : 0);
  static constexpr int kPartialBytesOfGroup = rows * kPartialStride * static_cast<int>(sizeof(float));
  static constexpr int kSteps = depth / 4 / kDepthGroups;
  // Columns that lie side by side in a vector of w when its rows are along k.
  static constexpr int kSideBySide = kThreadColumns < 4 ? kThreadColumns : 4;
  static_assert(kRowLanes * kThreadRows == rows && kColumnGroups * kWarpColumns == columns);
  static_assert(kDepthGroups * kColumnGroups == warps && kSteps * 4 * kDepthGroups == depth);
  static_assert(kThreadColumns == 2 || kThreadColumns % 4 == 0);

  __device__ __forceinline__ FmaProduct() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    group_ = warp / kColumnGroups;
    row_ = lane / kColumnLanes;
    lane_ = lane % kColumnLanes;
    first_column_ = warp % kColumnGroups * kWarpColumns;
  }

  __device__ __forceinline__ void accumulate(const float* x, const float* w) {
    // With 64 sums a lane has no registers left to load ahead: the other warps hide the wait.
#pragma unroll(kThreadRows* kThreadColumns >= 64 ? 1 : kSteps)
    for (int step = 0; step < kSteps; ++step) {
      const int k = (step * kDepthGroups + group_) * 4;
      float a[kThreadRows][4];
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        load_vector<float>(a[i], x + row(i) * X::kStride + k);
      }
      if constexpr (transposed) {
#pragma unroll
        for (int j = 0; j < kThreadColumns; ++j) {
          float b[4];
          load_vector<float>(b, w + column(j) * W::kStride + k);
#pragma unroll
          for (int c = 0; c < 4; ++c) {
#pragma unroll
            for (int i = 0; i < kThreadRows; ++i) {
              sum_[i][j] = fmaf(a[i][c], b[c], sum_[i][j]);
            }
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
#pragma unroll
          for (int j = 0; j < kThreadColumns; j += kSideBySide) {
            float b[kSideBySide];
            // Without this the compiler loads all of them at once, and runs out of registers.
            asm volatile("" ::: "memory");
            memcpy(b, __builtin_assume_aligned(w + (k + c) * W::kStride + column(j), sizeof(b)), sizeof(b));
#pragma unroll
            for (int jj = 0; jj < kSideBySide; ++jj) {
#pragma unroll
              for (int i = 0; i < kThreadRows; ++i) {
                sum_[i][j + jj] = fmaf(a[i][c], b[jj], sum_[i][j + jj]);
              }
            }
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* partial) const {
    float* mine = partial + group_ * rows * kPartialStride;
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadColumns; ++j) {
        mine[row(i) * kPartialStride + column(j)] = sum_[i][j];
      }
    }
  }

 private:
  __device__ __forceinline__ int row(int i) const {
    return row_ + i * kRowLanes;
  }
  __device__ __forceinline__ int column(int j) const {
    if constexpr (transposed) {
      return first_column_ + lane_ + j * kColumnLanes;
    }
    return first_column_ + (lane_ + j / kSideBySide * kColumnLanes) * kSideBySide + j % kSideBySide;
  }

  int group_, row_, lane_, first_column_;
  float sum_[kThreadRows][kThreadColumns] = {};
};

}  // namespace aten_ext::cuda
