// How rows of an operand come to shared memory: in vectors of 16 bytes where all rows begin at one and end
// with one, and otherwise in words of 4 bytes.
//
// Words are asynchronous too where each begins at a multiple of 4 bytes. Rows of 16 bits and an odd length do
// not: their words are put together in registers, so many at a time that the memory is busy meanwhile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "device/async_copy.cuh"
#include "device/vector.cuh"

namespace aten_ext::cuda {

template <typename T, bool vectors>
struct Pieces {
  static constexpr int kElements = vectors ? Vector<T>::kSize : 4 / static_cast<int>(sizeof(T));
  static constexpr int kInVector = Vector<T>::kSize / kElements;

  // Starts copying this thread's `count` pieces, which are `step` elements apart, those that exist(i) at all.
  // vector_of(i) is the vector in shared memory that piece i is a part of, the piece % kInVector-th; left(i)
  // is how many elements are left of its row: what follows them is zeros. `words`: all pieces begin at
  // multiples of 4 bytes.
  template <int count, typename VectorOf, typename Exists, typename Left>
  static __device__ __forceinline__ void copy(const VectorOf& vector_of, int piece, const T* from,
                                              int64_t step, const Exists& exists, const Left& left,
                                              bool words) {
    if constexpr (vectors) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (exists(i)) {
          copy_async_16_or_zero(vector_of(i), from, left(i) > 0);
        }
        from += step;
      }
    } else if (sizeof(T) == 4 || words) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        if (exists(i)) {
          copy_async_4_or_zero(word_of(vector_of(i), piece), from,
                               min(max(left(i), 0), kElements) * static_cast<int>(sizeof(T)));
        }
        from += step;
      }
    } else {
      constexpr int kAtOnce = count < 8 ? count : 8;
#pragma unroll
      for (int first = 0; first < count; first += kAtOnce) {
        T halves[kAtOnce][kElements];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
          for (int j = 0; j < kElements; ++j) {
            halves[i][j] = exists(first + i) && j < left(first + i) ? from[j] : from_op<T>(0.0f);
          }
          from += step;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          uint32_t bits;
          memcpy(&bits, halves[i], sizeof(bits));
          *word_of(vector_of(first + i), piece) = bits;
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ uint32_t* word_of(uint4* vector, int piece) {
    return reinterpret_cast<uint32_t*>(vector) + piece % kInVector;
  }
};

}  // namespace aten_ext::cuda
