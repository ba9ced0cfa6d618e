// The weight's tiles (weight.cuh) where rows of the weight begin and end anywhere (covered_rows.cuh).
//
// A tile [N, K] is the block's, with all its k in a row: warps that shared rows would share vectors too. Rows
// lie one behind the other, so that neighbours share lines. Where one block reads all of them its copies pass
// through the L1, which asks for such a line once (5 rows of K = 503, N = 6313 in bf16: 4.0 us and not 5.9).
//
// Of a tile [K, N] in 16 bits each lane t's rows are moved by two vectors against the next, so that lanes
// that read at once find different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/vector.cuh"
#include "ops/linear/covered_rows.cuh"
#include "ops/linear/weight.cuh"

namespace aten_ext::cuda {

template <typename T, bool transposed, int groups, int depth_groups, int steps>
class CoveredWeight : public WeightTile<T, transposed, groups, depth_groups, steps> {
  using Tile = WeightTile<T, transposed, groups, depth_groups, steps>;
  using Tile::depth_group_;
  using Tile::group_;
  static constexpr int kVectors = (transposed ? Tile::kDepth : Tile::kColumns) / Tile::kVector;
  static constexpr int kRows = transposed ? Tile::kColumns : Tile::kDepth;
  static constexpr int kMoved = !transposed && sizeof(T) == 2 ? 2 : 0;

 public:
  static constexpr int kBytes =
      16 * (kRows * (kVectors + (transposed ? kCoveredPadding : 1)) + kRows / Tile::kLaneDepth * kMoved);

  // As LinearWeight's. `is_whole`: the block reads all k.
  __device__ __forceinline__ CoveredWeight(const void* weight, int64_t stride, int N, int K, int first_column,
                                           int first_k, bool is_whole)
      : CoveredWeight(static_cast<const T*>(weight) +
                          (transposed ? first_column * stride + first_k : first_k * stride + first_column),
                      stride, N - first_column, K - first_k, is_whole) {}

  // Starts copying the next tile to `to`: zeros for what lies outside of the weight.
  __device__ __forceinline__ void copy(uint4* to) {
    const auto to_place = [&](int row, int vector) { return to + place(row, vector); };
    const int rows_left = transposed ? columns_left_ : k_left_;
    const int elements_left = transposed ? k_left_ : columns_left_;
    if (transposed && is_whole_) {
      rows_.template copy<true>(to_place, rows_left, elements_left);
    } else {
      rows_.template copy<false>(to_place, rows_left, elements_left);
    }
    rows_.advance(Tile::kDepth * (transposed ? 1 : stride_) * static_cast<int>(sizeof(T)));
    k_left_ -= Tile::kDepth;
  }

  // This lane's part of a step of its warp.
  __device__ __forceinline__ void load(uint32_t (&words)[Tile::kWords], const uint4* tile, int step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (transposed) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = group_ * Tile::kWarpColumns + lane / 4 + half * 8;
        uint32_t bits[4];
        load_shifted<T>(bits, tile + place(column, (depth_group_ * steps + step) * 4 + lane % 4), shift_);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[half * 4 + i] = bits[i];
        }
      }
    } else {
      const int k = depth_group_ * Tile::kWarpDepth + step * Tile::kStepDepth + lane % 4 * Tile::kLaneDepth;
      const int column = group_ * Tile::kWarpColumns + lane / 4 * 2;
#pragma unroll
      for (int i = 0; i < Tile::kLaneDepth; ++i) {
        const int shift = (shift_ + i * shift_of_row_) % 16;
        const uint32_t* at = reinterpret_cast<const uint32_t*>(tile + place(k + i, 0)) +
                             column * static_cast<int>(sizeof(T)) / 4 + shift / 4;
        if constexpr (sizeof(T) == 4) {
          words[i * 2] = at[0];
          words[i * 2 + 1] = at[1];
        } else {
          words[i] = __funnelshift_r(at[0], at[1], static_cast<uint32_t>(shift % 4) * 8);
        }
      }
    }
  }

 private:
  // `from`: the first tile.
  __device__ __forceinline__ CoveredWeight(const T* from, int64_t stride, int columns_left, int k_left,
                                           bool is_whole)
      : rows_(from, stride),
        stride_(stride),
        columns_left_(columns_left),
        k_left_(k_left),
        is_whole_(is_whole),
        // Of [K, N] that of the first of a lane's rows: kLaneDepth rows are whole vectors.
        shift_(shift_of(from + (transposed ? static_cast<int>(threadIdx.x) % 32 / 4 * stride : 0))),
        shift_of_row_(static_cast<int>(stride * static_cast<int>(sizeof(T)) % 16)),
        pitch_(transposed ? covered_pitch<T>(kVectors, stride) : kVectors + 1) {}

  // Of a tile [N, K] row / kLaneDepth is no k.
  __device__ __forceinline__ int place(int row, int vector) const {
    return row * (transposed ? pitch_ : kVectors + 1) + (kMoved == 0 ? 0 : row / Tile::kLaneDepth * kMoved) +
           vector;
  }

  CoveredRows<T, Tile::kThreads, kRows, kVectors> rows_;
  int64_t stride_;
  int columns_left_, k_left_;
  bool is_whole_;
  int shift_;         // bytes, of this lane's rows
  int shift_of_row_;  // [K, N]: from one row to the next
  int pitch_;         // [N, K]: vectors from one row to the next
};

}  // namespace aten_ext::cuda
