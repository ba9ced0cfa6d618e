// A block's tiles of mat1 in shared memory, and what lanes feed of them to the tensor cores: `rows` rows of a
// stage's `depth` k.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/math.h"
#include "device/async_copy.cuh"
#include "device/vector.cuh"
#include "ops/linear/covered_rows.cuh"
#include "ops/linear/few_rows_geometry.h"

namespace aten_ext::cuda {

// Of rows that are whole vectors of 16 bytes. The halves of each 128 bytes change places in every other row,
// so that the lanes that read at once (four vectors of two rows) find different banks.
template <typename T, int rows, int depth>
class LinearMat1 {
 public:
  static constexpr int kBytes = rows * depth * static_cast<int>(sizeof(T));

  // Tiles begin at `first_k` of [M, K], rows `stride` elements apart.
  __device__ __forceinline__ LinearMat1(const void* mat1, int64_t stride, int M, int K, int first_k)
      : row_(static_cast<int>(threadIdx.x) / kVectors),
        vector_(static_cast<int>(threadIdx.x) % kVectors),
        from_(static_cast<const T*>(mat1) + row_ * stride + first_k + vector_ * kVector),
        stride_(stride),
        rows_(M),
        k_left_(K - first_k - vector_ * kVector) {}

  // Starts copying the next tile to `to`: zeros beyond K. Results of rows that do not exist are nobody's.
  __device__ __forceinline__ void copy(uint4* to) {
    const T* from = from_;
#pragma unroll
    for (int i = 0; i < ceil_div(rows, kRowsAtOnce); ++i) {
      const int row = row_ + i * kRowsAtOnce;
      if (row < rows_) {
        copy_async_16_or_zero(to + row * kVectors + (vector_ ^ row_ % 2 * 4), from, k_left_ > 0);
      }
      from += kRowsAtOnce * stride_;
    }
    from_ += depth;
    k_left_ -= depth;
  }

  // The bits of this lane's vector of row 8 octet + lane / 4, in step `step` of its warp's.
  __device__ __forceinline__ void load(uint32_t (&bits)[4], const uint4* tile, int depth_group, int step,
                                       int octet) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int vector = depth_group * few_rows::kStageSteps * 4 + (step ^ lane / 4 % 2) * 4 + lane % 4;
    memcpy(bits, tile + (octet * 8 + lane / 4) * kVectors + vector, sizeof(bits));
  }

 private:
  static constexpr int kVector = Vector<T>::kSize;
  static constexpr int kVectors = depth / kVector;
  static constexpr int kRowsAtOnce = few_rows::kThreads / kVectors;
  static_assert(kRowsAtOnce % 2 == 0);

  int row_, vector_;
  const T* from_;  // this thread's first vector of the next tile
  int64_t stride_;
  int rows_, k_left_;
};

// Of rows that begin and end anywhere (covered_rows.cuh).
template <typename T, int rows, int depth>
class CoveredMat1 {
  static constexpr int kVectors = depth / Vector<T>::kSize;
  static constexpr int kPadding = few_rows::mat1_padding(rows, /*vectors=*/false) / 16;

 public:
  static constexpr int kBytes = rows * (kVectors + kPadding) * 16;

  __device__ __forceinline__ CoveredMat1(const void* mat1, int64_t stride, int M, int K, int first_k)
      : CoveredMat1(static_cast<const T*>(mat1) + first_k, stride, M, K - first_k) {}

  __device__ __forceinline__ void copy(uint4* to) {
    copies_.template copy<false>([&](int row, int vector) { return to + row * pitch_ + vector; }, rows_,
                                 k_left_);
    copies_.advance(depth * static_cast<int>(sizeof(T)));
    k_left_ -= depth;
  }

  __device__ __forceinline__ void load(uint32_t (&bits)[4], const uint4* tile, int depth_group, int step,
                                       int octet) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int vector = (depth_group * few_rows::kStageSteps + step) * 4 + lane % 4;
    load_shifted<T>(bits, tile + (octet * 8 + lane / 4) * pitch_ + vector, shift_);
  }

 private:
  __device__ __forceinline__ CoveredMat1(const T* from, int64_t stride, int M, int k_left)
      : copies_(from, stride),
        rows_(M),
        k_left_(k_left),
        shift_(shift_of(from + static_cast<int>(threadIdx.x) % 32 / 4 * stride)),
        pitch_(kPadding == kCoveredPadding ? covered_pitch<T>(kVectors, stride) : kVectors + kPadding) {}

  CoveredRows<T, few_rows::kThreads, rows, kVectors> copies_;
  int rows_, k_left_;
  int shift_;  // bytes, of this lane's rows
  int pitch_;  // vectors from one row to the next
};

}  // namespace aten_ext::cuda
