// Products of one row of the batch: of rows of a unit's gates with x or h.
//
// What keeps the memory busy is the number of loads on their way, and where a matrix' rows are not whole
// vectors of 16 bytes each load brings little. A lane has several of each gate on their way, those behind the
// last column left out one by one: an unrolled loop takes the rest of a row, often all of it, one load at a
// time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/vector.cuh"

namespace aten_ext::cuda {

// A lane's columns from `first` on, in groups of kWidth, `step` apart, kLoads groups on their way at once.
template <typename Cell, bool kHidden, int kWidth, int kLoads, typename T>
__device__ __forceinline__ void multiply_groups(float (&sums)[Cell::kSums],
                                                const T* const (&row)[Cell::kGates], const T* vector,
                                                int first, int step, int length) {
  for (int at = first; at < length; at += kLoads * step) {
    T w[kLoads][Cell::kGates][kWidth];
    T x[kLoads][kWidth];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * step < length) {
        load_elements(x[i], vector + at + i * step);
#pragma unroll
        for (int gate = 0; gate < Cell::kGates; ++gate) {
          load_elements(w[i][gate], row[gate] + at + i * step);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (at + i * step < length) {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
#pragma unroll
          for (int gate = 0; gate < Cell::kGates; ++gate) {
            float& sum = sums[kHidden ? Cell::hidden_sum(gate) : Cell::input_sum(gate)];
            sum = fmaf(to_op(w[i][gate][j]), to_op(x[i][j]), sum);
          }
        }
      }
    }
  }
}

// Adds the unit's rows of a matrix [kGates * hidden, length] (W_hh if kHidden, else W_ih) times a vector
// [length] to its sums, for the columns of this lane. kVectors: all rows are whole vectors; else they are
// read in groups as wide as they allow. kSplit: four warps share the unit, and have few columns each.
template <typename Cell, bool kHidden, bool kVectors, bool kSplit, typename T>
__device__ __forceinline__ void multiply_row(float (&sums)[Cell::kSums], const T* matrix, const T* vector,
                                             int unit, int hidden, int length, int lane, int lanes) {
  constexpr int kVector = Vector<T>::kSize;
  constexpr int kLoads = kSplit ? 2 : 4;
  const T* row[Cell::kGates];
#pragma unroll
  for (int gate = 0; gate < Cell::kGates; ++gate) {
    row[gate] = matrix + (gate * static_cast<int64_t>(hidden) + unit) * length;
  }
  const uintptr_t bytes = reinterpret_cast<uintptr_t>(matrix) | reinterpret_cast<uintptr_t>(vector) |
                          static_cast<uintptr_t>(length) * sizeof(T);
  if (kVectors || bytes % 16 == 0) {
    multiply_groups<Cell, kHidden, kVector, kLoads>(sums, row, vector, lane * kVector, lanes * kVector,
                                                    length);
  } else if (bytes % (2 * sizeof(T)) == 0) {
    multiply_groups<Cell, kHidden, 2, kLoads + 2>(sums, row, vector, lane * 2, lanes * 2, length);
  } else {
    multiply_groups<Cell, kHidden, 1, 8>(sums, row, vector, lane, lanes, length);
  }
}

}  // namespace aten_ext::cuda
