// What the kernels of a backward recurrence take, and which part of the work is a block's.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/rnn/arguments.cuh"
#include "ops/rnn/backward/recurrence_backward.h"

namespace aten_ext::cuda {

struct BackwardArguments {
  BackwardDirection direction[2];
  int steps;
  int batch;
  int hidden;
  int groups;  // parts of the batch, each worked on by `blocks` blocks of its own
  int rows;    // of the batch in a group; the last may have fewer
  int blocks;
  int units;  // hidden units of a block; blocks * units >= hidden
  int64_t dy_step, dy_row;
  uint64_t* words;  // exchange through global memory only
};

// The blocks of a group are neighbours in the grid.
__device__ __forceinline__ RnnPlace backward_place(const BackwardArguments& a) {
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

// Steps count in the order of the backward: the first direction's runs from the last step to the first.
__device__ __forceinline__ int backward_time(const BackwardArguments& a, const RnnPlace& place, int step) {
  return place.direction == 0 ? a.steps - 1 - step : step;
}

}  // namespace aten_ext::cuda
