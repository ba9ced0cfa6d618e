// What a thread finishes in a step of the backward: one unit of several rows of the batch, a row in each
// turn. Their coefficients are fetched several turns ahead through shared memory; dy comes a turn ahead into
// a register, by way of the L2, where it was asked for some steps before.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/async_copy.cuh"
#include "device/vector.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/cells.cuh"
#include "ops/rnn/backward/shapes.h"

namespace aten_ext::cuda {

// All turns make a step. Tensor: dtype of the tensors.
template <typename Cell, typename Tensor, int kThreads>
class BackwardItems {
 public:
  static constexpr int kGates = Cell::kGates;
  static constexpr int kCoefficients = Cell::kCoefficients;
  using Gradients = GateGradients<kGates>;

  // `shared`: backward_items_bytes() of the block. Row of turn i: row + i * row_turn.
  __device__ __forceinline__ BackwardItems(const BackwardArguments& a, const RnnPlace& place, float* shared,
                                           int thread, int unit, int row, int row_turn)
      : d_(a.direction[place.direction]),
        slot_(shared + thread),
        carried_(shared + kBackwardAhead * kCoefficients * kThreads + thread),
        unit_(unit),
        row_(row),
        row_turn_(row_turn),
        rows_(place.rows),
        turns_((place.rows + row_turn - 1) / row_turn),
        has_unit_(unit < place.end_unit),
        first_index_(static_cast<int64_t>(place.first_row) + row) {
    const int time = backward_time(a, place, 0);
    index_ = static_cast<int64_t>(time) * a.batch + first_index_;
    index_step_ = place.direction == 0 ? -a.batch : a.batch;
    dy_step_ = place.direction == 0 ? -a.dy_step : a.dy_step;
    dy_ = static_cast<const Tensor*>(d_.dy) + time * a.dy_step + first_index_ * a.dy_row + unit;
    fetch_index_ = index_;
    fetch_left_ = a.steps * turns_;
    for (int turn = 0; turn < turns_; ++turn) {
      carried_[turn * kThreads] = 0.0f;
      if (!Cell::kBypass && Cell::kCarries > 0 && d_.dc_in != nullptr && exists(turn)) {
        carried_[turn * kThreads] = d_.dc_in[at_state(a, turn)];
      }
    }
    for (int i = 0; i < kBackwardAhead; ++i) {
      fetch(a);
    }
    load_dy(a, 0, a.steps);
  }

  __device__ __forceinline__ int turns() const {
    return turns_;
  }
  __device__ __forceinline__ int row(int turn) const {
    return row_ + turn * row_turn_;
  }
  __device__ __forceinline__ bool exists(int turn) const {
    return has_unit_ && row(turn) < rows_;
  }

  // Before anything is waited for: what a turn's gradients are made with.
  __device__ __forceinline__ void prepare(int turn) {
    wait_async_copies<kBackwardAhead - 1>();
#pragma unroll
    for (int i = 0; i < kCoefficients; ++i) {
      coefficients_[i] = slot_[i * kThreads];
    }
    prepare_last(turn);
  }
  // The same behind the last step, which has neither gates nor dy.
  __device__ __forceinline__ void prepare_last(int turn) {
    if constexpr (Cell::kCarries > 0) {
      carry_ = carried_[turn * kThreads];
    }
  }

  // The gradients of a turn's gates from what products gave, zero where the unit or row does not exist. Moves
  // on: the slot may be filled again.
  __device__ __forceinline__ Gradients gradients(int turn, float products) {
    float dh = products;
    if constexpr (Cell::kBypass) {
      dh += carry_;
    }
    dh += to_op(next_dy_);  // after what a chunk hands on as one
    Gradients result = Cell::gradients(coefficients_, dh, carry_);
    if constexpr (Cell::kCarries > 0) {
      carried_[turn * kThreads] = carry_;
    }
    if (!exists(turn)) {
      result = {};
    }
    return result;
  }

  // Of a turn; issues the loads for those that follow. `left`: steps that follow this one.
  __device__ __forceinline__ void write(const BackwardArguments& a, int turn, int left,
                                        const Gradients& gradients) {
    if (exists(turn)) {
      const int64_t index = index_ + static_cast<int64_t>(turn) * row_turn_;
      Tensor* const hidden = static_cast<Tensor*>(d_.d_hidden_gates) + index * kGates * a.hidden + unit_;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        hidden[gate * a.hidden] = from_op<Tensor>(gradients.hidden[gate]);
      }
      if constexpr (Cell::kInputNew) {
        Tensor* const input = static_cast<Tensor*>(d_.d_input_gates) + index * kGates * a.hidden + unit_;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          const bool is_new = gate == kGates - 1;
          input[gate * a.hidden] = from_op<Tensor>(is_new ? gradients.input_new : gradients.hidden[gate]);
        }
      }
    }
    fetch(a);
    if (turn + 1 < turns_) {
      load_dy(a, turn + 1, left + 1);
    } else {
      index_ += index_step_;
      dy_ += dy_step_;
      load_dy(a, 0, left);
    }
  }

  // dh of the first step's state, and dc; without products of their own if there are none.
  __device__ __forceinline__ void write_last(const BackwardArguments& a, int turn, float products) {
    if (exists(turn)) {
      const int64_t at = at_state(a, turn);
      d_.dh_out[at] = Cell::kBypass ? products + carry_ : products;
      if constexpr (Cell::kCarries > 0 && !Cell::kBypass) {
        d_.dc_out[at] = carry_;
      }
    }
  }

  // What takes the products' place at the first step.
  __device__ __forceinline__ float first(const BackwardArguments& a, int turn) const {
    return d_.dh_in != nullptr && exists(turn) ? d_.dh_in[at_state(a, turn)] : 0.0f;
  }

 private:
  __device__ __forceinline__ int64_t at_state(const BackwardArguments& a, int turn) const {
    return (first_index_ + turn * row_turn_) * a.hidden + unit_;
  }

  // Of the next turn that has none yet, into the slot that prepare() has emptied.
  __device__ __forceinline__ void fetch(const BackwardArguments& a) {
    if (fetch_left_ > 0 && exists(fetch_turn_)) {
      const float* const from =
          d_.coefficients +
          (fetch_index_ + static_cast<int64_t>(fetch_turn_) * row_turn_) * kCoefficients * a.hidden + unit_;
#pragma unroll
      for (int i = 0; i < kCoefficients; ++i) {
        copy_async_4(slot_ + i * kThreads, from + i * a.hidden);
      }
    }
    commit_async_copies();
    --fetch_left_;
    if (++fetch_turn_ == turns_) {
      fetch_turn_ = 0;
      fetch_index_ += index_step_;
    }
    slot_index_ = (slot_index_ + 1) % kBackwardAhead;
    slot_ += (slot_index_ == 0 ? -(kBackwardAhead - 1) : 1) * kCoefficients * kThreads;
  }

  // Of a turn, dy_ being that of its step's first; `left`: steps from that one.
  __device__ __forceinline__ void load_dy(const BackwardArguments& a, int turn, int left) {
    next_dy_ = from_op<Tensor>(0.0f);
    if (d_.dy != nullptr && left > 0 && exists(turn)) {
      const Tensor* const from = dy_ + static_cast<int64_t>(turn) * row_turn_ * a.dy_row;
      next_dy_ = *from;
      if (left > kBackwardAhead) {
        prefetch_to_l2(from + kBackwardAhead * dy_step_);
      }
    }
  }

  const BackwardDirection& d_;
  float* slot_;
  float* carried_;
  const Tensor* dy_;  // of the turn 0 of the step whose dy is loaded next
  int64_t dy_step_;
  int64_t first_index_;  // row of the batch
  int64_t index_;        // of the step and row, of turn 0
  int64_t fetch_index_;
  int64_t index_step_;
  int unit_, row_, row_turn_, rows_, turns_;
  bool has_unit_;
  int fetch_turn_ = 0;
  int fetch_left_;
  int slot_index_ = 0;
  float coefficients_[kCoefficients];
  float carry_ = 0.0f;
  Tensor next_dy_;
};

}  // namespace aten_ext::cuda
