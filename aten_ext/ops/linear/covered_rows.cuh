// Rows of an operand that begin and end anywhere, in shared memory: the vectors of 16 bytes that cover a row
// are copied as they lie, one more than it has, and whoever reads them moves them into place.
//
// A row's first element lies as far behind its first vector as its address is beyond a multiple of 16: its
// shift. Stages are whole vectors apart, so a row has the same shift in all of them, and rows whose distance
// is a multiple of eight have equal ones. Before its first element a vector has whatever lies in memory
// there, behind its last one zeros.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/async_copy.cuh"

namespace aten_ext::cuda {

// Bytes by which an address exceeds a multiple of 16.
template <typename T>
__device__ __forceinline__ int shift_of(const T* address) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(address) % 16);
}

// The copies of a block's thread: of each stage a tile of `rows` rows, which are `vectors` vectors long.
template <typename T, int threads, int rows, int vectors>
class CoveredRows {
 public:
  // The tile begins at `from`; rows are `stride` elements apart.
  __device__ __forceinline__ CoveredRows(const T* from, int64_t stride)
      : row_(static_cast<int>(threadIdx.x) / vectors),
        vector_(static_cast<int>(threadIdx.x) % vectors),
        apart_(kRowsAtOnce * stride * static_cast<int>(sizeof(T))),
        own_(from + row_ * stride, vector_),
        last_(from + static_cast<int>(threadIdx.x) * stride, vectors) {}

  // Starts copying a stage's tile: vector v of row r goes to to(r, v). Zeros for rows from `rows_left` on,
  // and for what follows the first `elements_left` elements of a row; of rows that do not exist nothing is
  // read.
  template <bool through_l1, typename To>
  __device__ __forceinline__ void copy(const To& to, int rows_left, int elements_left) const {
    const int bytes = own_.bytes(elements_left);
#pragma unroll
    for (int i = 0; i < rows / kRowsAtOnce; ++i) {
      const int row = row_ + i * kRowsAtOnce;
      copy_async_16_first<through_l1>(to(row, vector_), own_.from + i * apart_, row < rows_left ? bytes : 0);
    }
    const int row = static_cast<int>(threadIdx.x);
    if (row < rows) {
      copy_async_16_first<through_l1>(to(row, vectors), last_.from,
                                      row < rows_left ? last_.bytes(elements_left) : 0);
    }
  }

  // On to the next stage's tile, `bytes` bytes on: a multiple of 16.
  __device__ __forceinline__ void advance(int64_t bytes) {
    own_.from += bytes;
    last_.from += bytes;
  }

 private:
  static constexpr int kRowsAtOnce = threads / vectors;
  static_assert(kRowsAtOnce % 8 == 0, "all rows of a thread have the same shift");
  static_assert(rows % kRowsAtOnce == 0 && rows <= threads);

  // One of the vectors that cover a row.
  struct Vector {
    __device__ __forceinline__ Vector(const T* row, int vector)
        : from(reinterpret_cast<const char*>(row) - shift_of(row) + vector * 16),
          missing(vector * 16 - shift_of(row)) {}

    // How many of its bytes are to be read.
    __device__ __forceinline__ int bytes(int elements_left) const {
      constexpr int kEnough = 1 << 16;  // more than a tile's, and no overflow in bytes
      const int left = min(elements_left, kEnough) * static_cast<int>(sizeof(T));
      return left <= 0 ? 0 : min(max(left - missing, 0), 16);
    }

    const char* from;
    int missing;  // bytes of the row that lie before it
  };

  int row_, vector_;
  int64_t apart_;  // bytes from one of this thread's rows to the next
  Vector own_;     // of the first of its rows
  Vector last_;    // of row threadIdx.x, the one vector more
};

// Vectors from one row of a tile to the next: so many that the lanes of a warp, four vectors of each of eight
// rows, find different banks, or two at most the same. Of rows of 16 bits and an odd length, whose shifts are
// by halves of words, the even rows lie at the same banks but for their shifts, and so do the odd ones.
constexpr int kCoveredPadding = 4;  // vectors more than a row has, at most
template <typename T>
__device__ __forceinline__ int covered_pitch(int vectors, int64_t stride) {
  return vectors + (sizeof(T) == 2 && stride % 2 != 0 ? kCoveredPadding : 1);
}

// The bits of 16 bytes of a row, which begin `shift` bytes behind `vector`.
template <typename T>
__device__ __forceinline__ void load_shifted(uint32_t (&to)[4], const uint4* vector, int shift) {
  const uint32_t* words = reinterpret_cast<const uint32_t*>(vector) + shift / 4;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = words[i];
    }
  } else {
    const uint32_t bits = static_cast<uint32_t>(shift % 4) * 8;
    uint32_t low = words[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t high = words[i + 1];
      to[i] = __funnelshift_r(low, high, bits);
      low = high;
    }
  }
}

}  // namespace aten_ext::cuda
