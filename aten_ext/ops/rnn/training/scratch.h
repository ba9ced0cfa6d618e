// Where a layer's backward keeps what it needs between its launches, in one piece of memory. No ATen here.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/rnn/pieces.h"
#include "ops/rnn/training/layer.h"

namespace aten_ext::cuda {

// Numbers of a layer that its backward counts in.
struct LayerSizes {
  LayerSizes(const RnnBackwardPlan& plan, const LayerBackward& layer)
      : pieces(*layer.pieces),
        most_rows(layer.packed != nullptr ? most_rows_of(pieces)
                                          : plan.problem.sequence.steps * plan.problem.sequence.batch),
        steps(plan.problem.sequence.steps),
        batch(plan.problem.sequence.batch),
        hidden(plan.problem.hidden),
        gates(plan.problem.gates() * plan.problem.hidden),
        bytes(plan.problem.is_16_bits() ? 2 : 4),
        directions(plan.problem.directions),
        is_gru(plan.problem.cell == Cell::Gru),
        is_lstm(plan.problem.cell == Cell::Lstm),
        is_packed(layer.packed != nullptr) {}

  const std::vector<Piece>& pieces;
  int64_t most_rows;  // of steps that exist at once: of a packed sequence, of a piece
  int64_t steps, batch, hidden;
  int64_t gates;  // of a row
  int64_t bytes;  // of an element of the tensors
  int directions;
  bool is_gru, is_lstm, is_packed;

  int64_t rows() const {
    return steps * batch;
  }
  int64_t state() const {
    return batch * hidden;
  }
  // The first in time of `count` steps that a direction computed from its step `first` on.
  int64_t time(int direction, int64_t first, int64_t count) const {
    return direction == 0 ? first : steps - first - count;
  }
  // The same within a piece.
  int64_t time_in(const Piece& piece, int direction, int64_t first, int64_t count) const {
    return time(direction, first, count) - time(direction, piece.first, piece.steps);
  }
  // Rows before these steps in what lies in order of time: of all, or of a packed sequence of the piece.
  int64_t row(const Piece& piece, int direction, int64_t first, int64_t count) const {
    return piece.batch *
           (is_packed ? time_in(piece, direction, first, count) : time(direction, first, count));
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
  Scratch(const RnnBackwardPlan& plan, const LayerBackward& layer, const LayerSizes& sizes, char* memory);

  // Of all steps in order of time, of a packed sequence of those of a piece.
  void* previous[2] = {};        // [steps, batch, H]: states before steps, where they are needed
  void* d_hidden_gates[2] = {};  // [steps, batch, gates]: gradients of W_hh h
  void* d_input_gates[2] = {};   // of W_ih x: a GRU's own, else the same
  float* coefficients[2] = {};   // of a piece; nullptr: the forward saved them
  // Of a packed sequence: what comes in, padded, of a piece, and what the results are made of, in its rows.
  void* padded_x[2] = {};     // [steps, batch, features], one behind the other
  void* padded_y = nullptr;   // [steps, batch, directions * H]
  void* padded_dy = nullptr;  // the same; it has the gradient of hy in it, at each row's own last step
  void* packed_previous[2] = {};
  void* packed_d_input[2] = {};
  void* packed_d_hidden[2] = {};  // [rows, H]: a GRU's n alone, whose r and z are those of the input's
  float* dh = nullptr;            // [directions, batch, H]: what is carried step by step, and the result
  float* dc = nullptr;            // LSTM: the same
  float* boundaries = nullptr;    // LSTM: [pieces - 1, directions, batch, H], cell states behind pieces
  float* passed_dh[2] = {};  // [directions, batch, H] from piece to piece, the one and the other in turns
  float* passed_dc[2] = {};
  uint64_t* words = nullptr;    // of the plan's one launch
  float* partial = nullptr;     // of column sums
  float* input_gates[2] = {};   // products of gates, of a part of a piece
  float* hidden_gates[2] = {};  // a GRU's own, else the same
  float* sums[2] = {};  // two directions: [sums_rows, features] of the input's gradient, see layer.cpp
  int64_t sums_rows = 0;
  void* dropped = nullptr;  // [rows, features] that the second direction reads, where both are at once
  int64_t bytes = 0;        // of all

 private:
  char* take(int64_t bytes);
  float* take_floats(int64_t count);
  void carve_packed(const RnnBackwardPlan& plan, const LayerBackward& layer, const LayerSizes& sizes);
  void carve_gates(const RnnBackwardPlan& plan, const LayerSizes& sizes);

  uintptr_t next_;
};

}  // namespace aten_ext::cuda
