// What a thread finishes in a step of the backward: one unit of several rows of the batch, a row in each
// turn. Coefficients and dy are fetched several turns ahead through shared memory. Nothing else is loaded in
// the loop: loads return in the order of their issue, so one that is needed soon would wait for those of
// later steps, which come from memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/async_copy.cuh"
#include "device/vector.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/cells.cuh"
#include "ops/rnn/backward/saved.cuh"
#include "ops/rnn/backward/shapes.h"

namespace aten_ext::cuda {

// All turns make a step. Tensor: dtype of the tensors. Coefficient: what coefficients lie in memory as, float
// or, of tensors of 16 bits, saved by the forward (saved.cuh). kPrefetch: the L2 is asked for what will be
// fetched, for kernels that poll words in between, whose loads would wait otherwise.
template <typename Cell, typename Tensor, typename Coefficient, int kThreads, bool kPrefetch>
class BackwardItems {
  static_assert(std::is_same_v<Coefficient, float> || std::is_same_v<Coefficient, SavedBits<Tensor>>);

 public:
  static constexpr int kGates = Cell::kGates;
  static constexpr int kCoefficients = Cell::kCoefficients;
  static constexpr int kValues = kCoefficients + 1;  // of a slot: dy too
  static constexpr int kAhead = kBackwardAhead;
  using Gradients = GateGradients<kGates>;

  // `shared`: backward_items_bytes() of the block. Row of turn i: row + i * row_turn.
  __device__ __forceinline__ BackwardItems(const BackwardArguments& a, const RnnPlace& place, float* shared,
                                           int thread, int unit, int row, int row_turn)
      : d_(a.direction[place.direction]),
        slots_(shared + thread),
        carried_(shared + kAhead * kValues * kThreads + thread),
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
    fetch_dy_ = static_cast<const Tensor*>(d_.dy) + time * a.dy_step + first_index_ * a.dy_row + unit;
    dy_place_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(fetch_dy_));
    fetch_index_ = index_;
    fetch_left_ = a.steps * turns_;
    for (int turn = 0; turn < turns_; ++turn) {
      carried_[turn * kThreads] = 0.0f;
      if (!Cell::kBypass && Cell::kCarries > 0 && d_.dc_in != nullptr && exists(turn)) {
        carried_[turn * kThreads] = d_.dc_in[at_state(a, turn)];
      }
    }
    for (int i = 0; i < kAhead; ++i) {
      fetch(a);
    }
  }

  __device__ __forceinline__ int row(int turn) const {
    return row_ + turn * row_turn_;
  }
  __device__ __forceinline__ bool exists(int turn) const {
    return has_unit_ && row(turn) < rows_;
  }

  // The gradients of all turns' gates. `wait`: for what sums are made of; sum(row): the products of a row
  // that exists; send(row, gradients): of a turn's row, which need not exist. A step behind the `last` has no
  // gates: it gives the gradient of the first step's state. All lanes of a warp together.
  template <typename Wait, typename Sum, typename Send>
  __device__ __forceinline__ void finish(const BackwardArguments& a, int step, const Wait& wait,
                                         const Sum& sum, const Send& send) {
    const bool last = step == a.steps;
#pragma unroll 1
    for (int first = 0; first < turns_; first += kKept) {
      if (first > 0 && !last) {
        write_kept(a, first - kKept);
      }
      finish_turn<0>(a, step, last, first, wait, sum, send);
      if (first + 1 < turns_) {
        finish_turn<1>(a, step, last, first + 1, wait, sum, send);
      }
    }
  }

  // What no one waits for: the stores of the last turns, and the loads of those that follow.
  __device__ __forceinline__ void write(const BackwardArguments& a) {
    write_kept(a, (turns_ - 1) / kKept * kKept);
    index_ += index_step_;
    dy_place_ += static_cast<uint32_t>(dy_step_) * sizeof(Tensor);
  }

 private:
  static constexpr int kKept = 2;  // turns whose gradients are in registers

  template <int kTurn, typename Wait, typename Sum, typename Send>
  __device__ __forceinline__ void finish_turn(const BackwardArguments& a, int step, bool last, int turn,
                                              const Wait& wait, const Sum& sum, const Send& send) {
    float coefficients[kCoefficients];
    float dy = 0.0f;
    float carry = 0.0f;
    if (!last) {
      wait_async_copies<kAhead - 1 - kTurn>();
      read_slot(a, coefficients, dy, turn);
    }
    if constexpr (Cell::kCarries > 0) {
      carry = carried_[turn * kThreads];
    }
    if (turn == 0) {
      wait();
    }
    float products;
    if (step == 0) {
      products = d_.dh_in != nullptr && exists(turn) ? d_.dh_in[at_state(a, turn)] : 0.0f;
    } else {
      products = sum(min(row(turn), rows_ - 1));
    }
    if constexpr (Cell::kBypass) {
      products += carry;
    }
    if (last) {
      if (exists(turn)) {
        d_.dh_out[at_state(a, turn)] = products;
        if constexpr (Cell::kCarries > 0 && !Cell::kBypass) {
          d_.dc_out[at_state(a, turn)] = carry;
        }
      }
      return;
    }
    Gradients& gradients = kept_[kTurn];
    gradients = Cell::gradients(coefficients, products + dy, carry);
    if constexpr (Cell::kCarries > 0) {
      carried_[turn * kThreads] = carry;
    }
    if (!exists(turn)) {
      gradients = {};
    }
    send(row(turn), gradients);
  }

  __device__ __forceinline__ void read_slot(const BackwardArguments& a, float (&coefficients)[kCoefficients],
                                            float& dy, int turn) {
    const float* const slot = slots_ + read_ * kValues * kThreads;
#pragma unroll
    for (int i = 0; i < kCoefficients; ++i) {
      if constexpr (std::is_same_v<Coefficient, float>) {
        coefficients[i] = slot[i * kThreads];
      } else {
        const uint32_t two = __float_as_uint(slot[i * kThreads]);
        coefficients[i] =
            from_saved<Cell, Tensor>(i, static_cast<Coefficient>(two >> (unit_ % 2 == 0 ? 0 : 16)));
      }
    }
    if (d_.dy != nullptr) {
      const uint32_t bits = __float_as_uint(slot[kCoefficients * kThreads]);
      if constexpr (sizeof(Tensor) == sizeof(float)) {
        dy = __uint_as_float(bits);
      } else {
        const uint32_t place =
            dy_place_ + turn * row_turn_ * static_cast<uint32_t>(a.dy_row) * sizeof(Tensor);
        const auto half = static_cast<uint16_t>(bits >> (place & 2) * 8);
        Tensor value;
        memcpy(&value, &half, sizeof(value));
        dy = to_op(value);
      }
    }
    read_ = (read_ + 1) % kAhead;
  }

  __device__ __forceinline__ void write_kept(const BackwardArguments& a, int first) {
    write_turn(a, first, kept_[0]);
    if (first + 1 < turns_) {
      write_turn(a, first + 1, kept_[1]);
    }
  }

  __device__ __forceinline__ void write_turn(const BackwardArguments& a, int turn,
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
  }

  __device__ __forceinline__ int64_t at_state(const BackwardArguments& a, int turn) const {
    return (first_index_ + turn * row_turn_) * a.hidden + unit_;
  }

  // Of the next turn that has none yet, into a slot that has been read.
  __device__ __forceinline__ void fetch(const BackwardArguments& a) {
    if (fetch_left_ > 0 && exists(fetch_turn_)) {
      const bool more = kPrefetch && fetch_left_ > kAhead * turns_;
      float* const slot = slots_ + fetch_slot_ * kValues * kThreads;
      const int64_t from_turn = static_cast<int64_t>(fetch_turn_) * row_turn_;
      // Copies are of four bytes: of 16 bits those of two units, of which the row has an even number.
      constexpr int kOfCopy = sizeof(float) / sizeof(Coefficient);
      const Coefficient* const from = static_cast<const Coefficient*>(d_.coefficients) +
                                      (fetch_index_ + from_turn) * kCoefficients * a.hidden +
                                      unit_ / kOfCopy * kOfCopy;
#pragma unroll
      for (int i = 0; i < kCoefficients; ++i) {
        copy_async_4(slot + i * kThreads, from + i * a.hidden);
      }
      if (more) {
        const Coefficient* const later = from + kAhead * index_step_ * kCoefficients * a.hidden;
#pragma unroll
        for (int i = 0; i < kCoefficients; ++i) {
          prefetch_to_l2(later + i * a.hidden);
        }
      }
      if (d_.dy != nullptr) {
        const Tensor* const dy = fetch_dy_ + from_turn * a.dy_row;
        fetch_one(a, slot + kCoefficients * kThreads, dy);
        if (more) {
          prefetch_to_l2(dy + kAhead * dy_step_);
        }
      }
    }
    commit_async_copies();
    --fetch_left_;
    if (++fetch_turn_ == turns_) {
      fetch_turn_ = 0;
      fetch_index_ += index_step_;
      fetch_dy_ += dy_step_;
    }
    fetch_slot_ = (fetch_slot_ + 1) % kAhead;
  }

  // An element of a row. Copies are of four bytes: in 16 bits of the two elements that share them, if both
  // are the row's.
  __device__ __forceinline__ void fetch_one(const BackwardArguments& a, float* slot,
                                            const Tensor* from) const {
    if constexpr (sizeof(Tensor) == sizeof(float)) {
      copy_async_4(slot, from);
    } else {
      const bool upper = (reinterpret_cast<uintptr_t>(from) & 2) != 0;
      if (upper ? unit_ > 0 : unit_ + 1 < a.hidden) {
        copy_async_4(slot, from - (upper ? 1 : 0));
      } else {
        uint16_t bits;
        memcpy(&bits, from, sizeof(bits));
        *slot = __uint_as_float(static_cast<uint32_t>(bits) << (upper ? 16 : 0));
      }
    }
  }

  const BackwardDirection& d_;
  float* slots_;
  float* carried_;
  const Tensor* fetch_dy_;
  int64_t dy_step_;
  int64_t first_index_;  // row of the batch
  int64_t index_;        // of the step and row, of turn 0
  int64_t fetch_index_;
  int64_t index_step_;
  uint32_t dy_place_;  // the lower half of the address of the step's dy, of turn 0
  int unit_, row_, row_turn_, rows_, turns_;
  bool has_unit_;
  int fetch_turn_ = 0;
  int fetch_left_;
  int fetch_slot_ = 0;
  int read_ = 0;
  Gradients kept_[kKept];
};

}  // namespace aten_ext::cuda
