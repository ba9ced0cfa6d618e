// The product of two 16-bit tiles on tensor cores, summed in fp32: partial[m][n] = sum over k of x[m][k] *
// w[n][k].
//
// The weight is the instruction's 16-row operand and x its 8-column one: with one row of x seven eighths of
// the tensor cores' work is thrown away, of which there is plenty, and with eight rows nothing. A warp takes
// kTiles times 16 columns of the result and all its rows; ldmatrix hands out the fragments of both operands
// (of a weight with rows along k transposed), 32 k at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/linear_tile.cuh"
#include "cuda/device/mma.cuh"

namespace aten_ext::cuda {

// x is [rows, depth]; w is [columns, depth], or [depth, columns] if not `transposed`.
template <typename T, bool transposed, int rows, int columns, int depth, int warps>
class MmaProduct {
 public:
  using X = LinearTile<T, rows, depth>;
  using W = LinearTile<T, transposed ? columns : depth, transposed ? depth : columns>;

  static constexpr int kOctets = rows / 8;
  // With many rows two tiles share each fragment of x, of which there are more than of the weight.
  static constexpr int kTiles = rows > 16 ? 2 : 1;
  static constexpr int kColumnGroups = columns / (16 * kTiles);
  static constexpr int kDepthGroups = warps / kColumnGroups;
  // partial is [kDepthGroups][rows][kPartialStride]; lanes of different rows write to different banks.
  static constexpr int kPartialStride = columns + 4;
  static constexpr int kPartialBytesOfGroup = rows * kPartialStride * static_cast<int>(sizeof(float));
  static constexpr int kSteps = depth / 32 / kDepthGroups;
  static_assert(kOctets * 8 == rows && kColumnGroups * 16 * kTiles == columns);
  static_assert(kDepthGroups * kColumnGroups == warps && kSteps * 32 * kDepthGroups == depth);

  __device__ __forceinline__ MmaProduct() {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    group_ = warp / kColumnGroups;
    first_column_ = warp % kColumnGroups * 16 * kTiles;
  }

  __device__ __forceinline__ void accumulate(const T* x, const T* w) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int k = (step * kDepthGroups + group_) * 32;
      if constexpr (kOctets == 1) {
        uint32_t a[2][kTiles][4];
        load_weight(a[0], w, k);
        load_weight(a[1], w, k + 16);
        // Four matrices: eight rows, 32 k.
        uint32_t b[4];
        load_matrices_x4(b, x + lane_ % 8 * X::kStride + k + lane_ / 8 * 8);
        multiply(0, a[0], {b[0], b[1]});
        multiply(0, a[1], {b[2], b[3]});
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a[kTiles][4];
          load_weight(a, w, k + half * 16);
#pragma unroll
          for (int octet = 0; octet < kOctets; octet += 2) {
            // Four matrices: 16 k of eight rows, then of the next eight.
            const int row = (octet + lane_ / 16) * 8 + lane_ % 8;
            uint32_t b[4];
            load_matrices_x4(b, x + row * X::kStride + k + half * 16 + lane_ / 8 % 2 * 8);
            multiply(octet, a, {b[0], b[1]});
            multiply(octet + 1, a, {b[2], b[3]});
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(float* partial) const {
    float* mine = partial + group_ * rows * kPartialStride;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int m = octet * 8 + lane_ % 4 * 2 + i % 2;
          const int n = first_column_ + tile * 16 + lane_ / 4 + i / 2 * 8;
          mine[m * kPartialStride + n] = sum_[tile][octet][i];
        }
      }
    }
  }

 private:
  // 16 k of the warp's columns. Matrices 0 to 3: columns 0-7 and 8-15 of the first eight k, then of the
  // others.
  __device__ __forceinline__ void load_weight(uint32_t (&a)[kTiles][4], const T* w, int k) const {
    const int from = k + lane_ / 16 * 8;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = first_column_ + tile * 16 + lane_ / 8 % 2 * 8;
      if constexpr (transposed) {
        load_matrices_x4(a[tile], w + (column + lane_ % 8) * W::kStride + from);
      } else {
        load_matrices_x4_transposed(a[tile], w + (from + lane_ % 8) * W::kStride + column);
      }
    }
  }

  __device__ __forceinline__ void multiply(int octet, const uint32_t (&a)[kTiles][4],
                                           const uint32_t (&b)[2]) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      mma_m16n8k16<T>(sum_[tile][octet], a[tile], b);
    }
  }

  int lane_, group_, first_column_;
  float sum_[kTiles][kOctets][4] = {};
};

}  // namespace aten_ext::cuda
