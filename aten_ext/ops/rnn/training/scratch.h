// Where a layer's backward keeps what it needs between its launches, in one piece of memory. No ATen here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "ops/rnn/training/layer.h"

namespace aten_ext::cuda {

// Numbers of a layer that its backward counts in.
struct LayerSizes {
  explicit LayerSizes(const RnnBackwardPlan& plan)
      : steps(plan.problem.sequence.steps),
        batch(plan.problem.sequence.batch),
        hidden(plan.problem.hidden),
        gates(plan.problem.gates() * plan.problem.hidden),
        chunk(plan.chunk),
        bytes(plan.problem.is_16_bits() ? 2 : 4),
        directions(plan.problem.directions),
        is_gru(plan.problem.cell == Cell::Gru),
        is_lstm(plan.problem.cell == Cell::Lstm) {}

  int64_t steps, batch, hidden;
  int64_t gates;  // of a row
  int64_t chunk;  // steps
  int64_t bytes;  // of an element of the tensors
  int directions;
  bool is_gru, is_lstm;

  int64_t rows() const {
    return steps * batch;
  }
  int64_t state() const {
    return batch * hidden;
  }
  int64_t chunks() const {
    return ceil_div(steps, chunk);
  }
  int64_t chunk_steps(int64_t index) const {
    return std::min(chunk, steps - index * chunk);
  }
  // The first in time of `count` steps that a direction computed from its step `first` on.
  int64_t time(int direction, int64_t first, int64_t count) const {
    return direction == 0 ? first : steps - first - count;
  }
  const void* at(const void* from, int64_t elements) const {
    return static_cast<const char*>(from) + elements * bytes;
  }
  void* at(void* from, int64_t elements) const {
    return static_cast<char*>(from) + elements * bytes;
  }
};

// By direction: [2]. What is not needed is nullptr.
struct Scratch {
  Scratch(const RnnBackwardPlan& plan, const LayerBackward& layer, char* memory);

  void* previous = nullptr;  // [directions, steps, batch, H]: states before all steps, where they are needed
  float* coefficients[2] = {};   // of a chunk; nullptr: the forward saved them
  void* d_hidden_gates[2] = {};  // [steps, batch, gates]: gradients of W_hh h
  void* d_input_gates[2] = {};   // of W_ih x: a GRU's own, else the same
  // Of a packed sequence, the same in its rows: what the results are made of.
  void* packed_previous[2] = {};
  void* packed_d_hidden[2] = {};
  void* packed_d_input[2] = {};
  float* dh = nullptr;          // [directions, batch, H]: what is carried step by step, and the result
  float* dc = nullptr;          // LSTM: the same
  float* boundaries = nullptr;  // LSTM: [chunks - 1, directions, batch, H], cell states behind chunks
  float* passed_dh[2] = {};     // from chunk to chunk, the one and the other in turns
  float* passed_dc[2] = {};
  uint64_t* words = nullptr;    // of the plan's one launch
  float* partial = nullptr;     // of column sums
  float* input_gates[2] = {};   // products of gates, of a part of a chunk
  float* hidden_gates[2] = {};  // a GRU's own, else the same
  float* sums[2] = {};  // two directions: [sums_rows, features] of the input's gradient, see layer.cpp
  int64_t sums_rows = 0;
  void* dropped = nullptr;  // [rows, features] that the second direction reads, where both are at once
  int64_t bytes = 0;        // of all

 private:
  char* take(int64_t bytes);
  float* take_floats(int64_t count);
  void carve_gates(const RnnBackwardPlan& plan, const LayerSizes& sizes);

  uintptr_t next_;
};

}  // namespace aten_ext::cuda
