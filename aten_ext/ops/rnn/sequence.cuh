// Where the rows of a sequence lie, step by step: what a kernel asks of it for one direction. Steps count in
// the order in which they are computed; in the reverse direction step 0 is the last in time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// Of a tensor [steps, batch, features] whose features lie side by side, in elements.
struct SequenceStrides {
  int64_t step, row;
};

// Every row has all steps.
struct PaddedSequence {
  int64_t steps;
  int batch;
  int direction;  // 1: reverse

  __device__ __forceinline__ int64_t time(int64_t step) const {
    return direction == 0 ? step : steps - 1 - step;
  }
  // Rows that take part in a step: the first so many of the batch.
  __device__ __forceinline__ int rows(int64_t /*step*/) const {
    return batch;
  }
  // Of a row's first element.
  __device__ __forceinline__ int64_t offset(const SequenceStrides& strides, int64_t step, int64_t row) const {
    return time(step) * strides.step + row * strides.row;
  }
  // From a row's element to its element of the next step.
  __device__ __forceinline__ int64_t advance(const SequenceStrides& strides, int64_t /*step*/) const {
    return direction == 0 ? strides.step : -strides.step;
  }
};

// Rows are sorted by length, longest first, and only the elements that exist are stored: those of a step lie
// side by side. In the forward direction rows retire as their sequences end; in the reverse direction each
// begins at its own end. A row that takes no part in a step keeps its state.
struct PackedSequence {
  int64_t steps;
  int direction;         // 1: reverse
  const int* first_row;  // [steps + 1]: the rows of all steps before, in time

  __device__ __forceinline__ int64_t time(int64_t step) const {
    return direction == 0 ? step : steps - 1 - step;
  }
  __device__ __forceinline__ int rows(int64_t step) const {
    const int* const first = first_row + time(step);
    return first[1] - first[0];
  }
  // Of a row that takes part in the step. Only strides.row counts.
  __device__ __forceinline__ int64_t offset(const SequenceStrides& strides, int64_t step, int64_t row) const {
    return (first_row[time(step)] + row) * strides.row;
  }
  __device__ __forceinline__ int64_t advance(const SequenceStrides& strides, int64_t step) const {
    return (first_row[time(step + 1)] - first_row[time(step)]) * strides.row;
  }
};

}  // namespace aten_ext::cuda
