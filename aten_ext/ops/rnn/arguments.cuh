// What the kernels of a recurrence take, and which part of the work is a block's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/rnn/sequence.cuh"

namespace aten_ext::cuda {

// One direction of one layer. T is the dtype of the tensors; gates: of the cell, in its order.
struct RnnDirectionArguments {
  const void* w_hh;         // [gates * hidden, hidden] of T
  const void* b_ih;         // [gates * hidden] of T, or nullptr
  const void* b_hh;         // [gates * hidden] of T, or nullptr
  const float* projection;  // W_ih * input, [steps, batch, gates * hidden] with the strides below
  const void* h0;           // [batch, hidden] of T
  void* hy;                 // [batch, hidden] of T
  void* y;                  // [steps, batch, hidden] of T with the strides below
  // T of 16 bits, where the steps are a part of a sequence: the carried state itself, [batch, hidden].
  const float* h0_fp32;  // nullptr: it is h0
  float* hy_fp32;        // nullptr: hy is enough
};

struct RnnArguments {
  RnnDirectionArguments direction[2];  // the second runs from the last step to the first
  int64_t steps;
  SequenceStrides projection;
  SequenceStrides y;
  int batch;
  int hidden;
  int groups;  // parts of the batch, each worked on by `blocks` blocks of its own
  int rows;    // of the batch in a group; the last may have fewer
  int blocks;
  int units;           // hidden units of a block; blocks * units >= hidden
  int shared_vectors;  // fma.cuh only: vectors of 128 columns of W_hh that are kept in shared memory
  // Exchange through global memory only: [2, directions, batch, words], zero; a word is 32 bits of a row of
  // the state and the number of the step.
  uint64_t* words;
  // Of a cell that carries a state beside h, for each direction: [batch, hidden] of T, and before it was
  // rounded, as h0_fp32 and hy_fp32 are.
  const void* c0[2];  // nullptr: zeros
  void* cy[2];
  const float* c0_fp32[2];
  float* cy_fp32[2];
  // Of a cell that saves, for each direction: [steps, batch, coefficients, hidden] (backward/saved.cuh).
  void* coefficients[2];
};

// Which part of the work is this block's. The blocks of a group are neighbours in the grid.
struct RnnPlace {
  int direction;
  int group;
  int rank;  // in the group
  int first_row;
  int rows;
  int first_unit;
  int end_unit;
};

__device__ __forceinline__ RnnPlace rnn_place(const RnnArguments& a) {
  RnnPlace place;
  const int of_direction = static_cast<int>(blockIdx.x) / a.blocks;
  place.rank = static_cast<int>(blockIdx.x) % a.blocks;
  place.direction = of_direction / a.groups;
  place.group = of_direction % a.groups;
  place.first_row = place.group * a.rows;
  place.rows = min(a.rows, a.batch - place.first_row);
  place.first_unit = place.rank * a.units;
  place.end_unit = min(a.hidden, place.first_unit + a.units);
  return place;
}

__device__ __forceinline__ PaddedSequence rnn_sequence(const RnnArguments& a, const RnnPlace& place) {
  return {a.steps, a.batch, place.direction};
}

}  // namespace aten_ext::cuda
