// A block's tiles of the weight of a linear layer in shared memory, filled with asynchronous copies, and the
// fragments of them that its warps feed to the tensor cores.
//
// A warp takes 16 columns of the result, and of k a step of 64 bytes at a time. The order of k inside a step
// is free as long as both operands agree, so it is the one in which a lane's share lies side by side: lane 4
// g + t has kLaneDepth consecutive k, from kLaneDepth * t on. Of a weight [N, K] they are one vector of 16
// bytes of column g and one of column g + 8; of a weight [K, N], pairs of the columns 2 g and 2 g + 1.
//
// Vectors lie where lanes that read at once find different banks: of a tile [N, K] a row's halves of 64 bytes
// change places in every other row, of a tile [K, N] each lane t's rows are turned by 32 bytes against the
// next.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/async_copy.cuh"
#include "device/vector.cuh"

namespace aten_ext::cuda {

// A tile: `groups` times 16 columns; for each of them `depth_groups` warps, each with `steps` steps.
template <typename T, bool transposed, int groups, int depth_groups, int steps>
class WeightTile {
 public:
  static constexpr int kThreads = groups * depth_groups * 32;
  static constexpr int kVector = Vector<T>::kSize;
  static constexpr int kWarpColumns = 16;
  static constexpr int kColumns = groups * kWarpColumns;
  static constexpr int kStepDepth = 4 * kVector;
  static constexpr int kLaneDepth = kVector;
  static constexpr int kWarpDepth = steps * kStepDepth;
  static constexpr int kDepth = depth_groups * kWarpDepth;
  static constexpr int kWords = 8;  // of a step, in each lane
  static_assert(steps % 2 == 0, "rows of a whole cache line");

  // Which of a warp's columns is row `row` (0 to 15) of its fragments.
  static __device__ __forceinline__ int column_of(int row) {
    return transposed ? row : row % 8 * 2 + row / 8;
  }

  // Asks for the first `tiles` tiles to come to the L2, a line at a time. Arguments as LinearWeight's.
  static __device__ __forceinline__ void prefetch(const void* weight, int64_t stride, int N, int K,
                                                  int first_column, int first_k, int tiles) {
    constexpr int kLine = 128 / static_cast<int>(sizeof(T));
    const int thread = static_cast<int>(threadIdx.x);
    const T* from = static_cast<const T*>(weight);
    const int end = min(K, first_k + tiles * kDepth);
    if constexpr (transposed) {
      constexpr int kThreadsOfRow = kThreads / kColumns;
      const int column = first_column + thread / kThreadsOfRow;
      from += column * stride;
      for (int k = first_k + thread % kThreadsOfRow * kLine; k < end && column < N;
           k += kThreadsOfRow * kLine) {
        prefetch_to_l2(from + k);
      }
    } else {
      constexpr int kThreadsOfRow = (kColumns + kLine - 1) / kLine;
      const int column = first_column + thread % kThreadsOfRow * kLine;
      from += column;
      for (int k = first_k + thread / kThreadsOfRow; k < end && column < N; k += kThreads / kThreadsOfRow) {
        prefetch_to_l2(from + k * stride);
      }
    }
  }

  // fp32: element i of the lane's kLaneDepth, of its column 0 or 1.
  static __device__ __forceinline__ float element(const uint32_t (&words)[kWords], int column, int i) {
    return __uint_as_float(words[transposed ? column * 4 + i : i * 2 + column]);
  }

  // 16 bits: the fragment A of the half of a step that has the lanes' elements 4 half to 4 half + 3.
  static __device__ __forceinline__ void fragment(uint32_t (&a)[4], const uint32_t (&words)[kWords],
                                                  int half) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = i % 2;
      const int pair = half * 2 + i / 2;
      a[i] = transposed ? words[column * 4 + pair]
                        : __byte_perm(words[pair * 2], words[pair * 2 + 1], column == 0 ? 0x5410 : 0x7632);
    }
  }

 protected:
  __device__ __forceinline__ WeightTile()
      : group_(static_cast<int>(threadIdx.x) / 32 / depth_groups),
        depth_group_(static_cast<int>(threadIdx.x) / 32 % depth_groups) {}

  int group_, depth_group_;  // of this thread's warp
};

// Of a weight whose rows are whole vectors of 16 bytes.
template <typename T, bool transposed, int groups, int depth_groups, int steps>
class LinearWeight : public WeightTile<T, transposed, groups, depth_groups, steps> {
  using Tile = WeightTile<T, transposed, groups, depth_groups, steps>;
  using Tile::depth_group_;
  using Tile::group_;

 public:
  using Tile::kColumns;
  using Tile::kDepth;
  using Tile::kLaneDepth;
  using Tile::kStepDepth;
  using Tile::kThreads;
  using Tile::kVector;
  using Tile::kWarpColumns;
  using Tile::kWarpDepth;
  using Tile::kWords;
  static constexpr int kBytes = kColumns * kDepth * static_cast<int>(sizeof(T));

  // `weight` is [N, K] or [K, N] in memory, rows `stride` elements apart; tiles begin at first_column,
  // first_k.
  __device__ __forceinline__ LinearWeight(const void* weight, int64_t stride, int N, int K, int first_column,
                                          int first_k, bool /*is_whole*/) {
    const int thread = static_cast<int>(threadIdx.x);
    const int lane = thread % 32;
    int column = first_column;
    int k = first_k;
    int64_t from;
    if constexpr (transposed) {
      row_ = lane / kVectorsInRow;
      vector_ = lane % kVectorsInRow;
      column += group_ * kWarpColumns + row_;
      k += depth_group_ * kWarpDepth + vector_ * kVector;
      from = column * stride + k;
    } else {
      row_ = thread / kVectorsInRow;
      vector_ = thread % kVectorsInRow;
      column += vector_ * kVector;
      k += row_;
      from = k * stride + column;
    }
    from_ = static_cast<const T*>(weight) + from;
    stride_ = stride;
    columns_left_ = N - column;
    k_left_ = K - k;
  }

  // Starts copying the next tile to `to`: zeros for what lies outside of the weight.
  __device__ __forceinline__ void copy(uint4* to) {
    if constexpr (transposed) {
      to += (group_ * depth_groups + depth_group_) * kWarpVectors;
    }
    const int elements_left = transposed ? k_left_ : columns_left_;
    const int rows_left = elements_left <= 0 ? 0 : transposed ? columns_left_ : k_left_;
    const T* from = from_;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      copy_async_16_or_zero(to + place(row_ + i * kRowsAtOnce, vector_), from, i * kRowsAtOnce < rows_left);
      from += kRowsAtOnce * stride_;
    }
    from_ += transposed ? kDepth : kDepth * stride_;
    k_left_ -= kDepth;
  }

  // This lane's part of a step of its warp.
  __device__ __forceinline__ void load(uint32_t (&words)[kWords], const uint4* tile, int step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (transposed) {
      tile += (group_ * depth_groups + depth_group_) * kWarpVectors;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint4 bits = tile[place(lane / 4 + row * 8, step * 4 + lane % 4)];
        words[row * 4] = bits.x;
        words[row * 4 + 1] = bits.y;
        words[row * 4 + 2] = bits.z;
        words[row * 4 + 3] = bits.w;
      }
    } else {
      using Pair = std::conditional_t<sizeof(T) == 4, uint2, uint32_t>;
      const int k = depth_group_ * kWarpDepth + step * kStepDepth + lane % 4 * kLaneDepth;
      const int column = group_ * kWarpColumns + lane / 4 * 2;
#pragma unroll
      for (int i = 0; i < kLaneDepth; ++i) {
        const uint4* at = tile + place(k + i, column / kVector);
        const Pair pair = reinterpret_cast<const Pair*>(at)[column % kVector / 2];
        memcpy(&words[i * static_cast<int>(sizeof(Pair) / 4)], &pair, sizeof(pair));
      }
    }
  }

 private:
  // Of a warp's own tile [N, K], or of the block's [K, N].
  static constexpr int kVectorsInRow = transposed ? steps * 4 : kColumns / kVector;
  static constexpr int kWarpVectors = kWarpColumns * steps * 4;
  static constexpr int kRowsAtOnce = (transposed ? 32 : kThreads) / kVectorsInRow;
  static constexpr int kCopies = (transposed ? kWarpColumns : kDepth) / kRowsAtOnce;
  static_assert(kCopies * kRowsAtOnce == (transposed ? kWarpColumns : kDepth));

  static __device__ __forceinline__ int place(int row, int vector) {
    const int turn = transposed ? row % 2 * 4 : row / kLaneDepth % 4 * 2 % kVectorsInRow;
    return row * kVectorsInRow + (vector ^ turn);
  }

  const T* from_;  // this thread's first vector of the next tile
  int64_t stride_;
  int columns_left_, k_left_;
  int row_, vector_;
};

}  // namespace aten_ext::cuda
