// The input projections of what a lane finishes, fetched kAhead turns ahead through shared memory (cp.async).
// Loaded one step ahead into registers, they were what a step of a small hidden size waited for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/async_copy.cuh"
#include "ops/rnn/arguments.cuh"

namespace aten_ext::cuda {

// A turn is the rows of a step that are worked on at once: `turns` of them, kRows rows each, make a step. Own
// says which results a lane has in a turn: kOwn of them, the first at (row, unit), result j at
// (row + Own::row(j), unit + Own::unit(j)).
//
// Pointers that step along cost less than addresses that are computed.
template <typename Cell, typename Own, int kThreads, int kRows, int kAhead>
class ProjectionRing {
 public:
  // `slots` [kAhead, kOwn * kGates, kThreads] is in shared memory. Of lanes without results, `exists` is
  // false. `wrap`: a row this far from the lane's first is in the next step.
  __device__ __forceinline__ ProjectionRing(const RnnArguments& a, const RnnPlace& place, float* slots,
                                            int thread, int row, int unit, int turns, int wrap, bool exists)
      : slot_(slots + thread),
        hidden_(a.hidden),
        turns_(turns),
        first_row_(row),
        unit_(unit),
        wrap_(wrap),
        row_(row) {
    const RnnDirectionArguments& d = a.direction[place.direction];
    const PaddedSequence sequence = rnn_sequence(a, place);
    from_ = d.projection + sequence.offset(a.projection, 0, place.first_row + row) + unit;
    to_next_turn_ = kRows * a.projection.row;
    to_next_step_ = sequence.advance(a.projection, 0) - (turns - 1) * to_next_turn_;
    left_ = exists ? static_cast<int>(a.steps) * turns : 0;
  }

  // Issues the loads of the next turn that has none yet, into the slot that read() has emptied. Moves on to
  // the next slot.
  __device__ __forceinline__ void fetch(const RnnArguments& a, const RnnPlace& place) {
    if (left_-- > 0) {
#pragma unroll
      for (int j = 0; j < Own::kCount; ++j) {
        if (row_ + Own::row(j) < place.rows && (!Own::kUnits || unit_ + Own::unit(j) < place.end_unit)) {
#pragma unroll
          for (int gate = 0; gate < Cell::kGates; ++gate) {
            copy_async_4(slot_ + (j * Cell::kGates + gate) * kThreads,
                         from_ + Own::row(j) * a.projection.row + gate * hidden_ + Own::unit(j));
          }
        }
      }
    }
    commit_async_copies();
    if (turns_ == 1) {
      from_ += to_next_step_;
    } else {
      row_ += kRows;
      const bool wraps = row_ - first_row_ >= wrap_;
      from_ += wraps ? to_next_step_ : to_next_turn_;
      row_ = wraps ? first_row_ : row_;
    }
    index_ = (index_ + 1) % kAhead;
    slot_ += (index_ == 0 ? -(kAhead - 1) : 1) * Own::kCount * Cell::kGates * kThreads;
  }

  // What the oldest slot holds of result j. wait() first.
  __device__ __forceinline__ typename Cell::Input read(int j, const typename Cell::Bias& bias) const {
    const float* const from = slot_ + j * Cell::kGates * kThreads;
    float x[Cell::kGates];
#pragma unroll
    for (int gate = 0; gate < Cell::kGates; ++gate) {
      x[gate] = from[gate * kThreads];
    }
    return Cell::input(x, bias);
  }

  __device__ __forceinline__ static void wait() {
    wait_async_copies<kAhead - 1>();
  }

 private:
  float* slot_;
  const float* from_;
  int64_t to_next_turn_, to_next_step_;
  int hidden_;
  int turns_;
  int first_row_, unit_;
  int wrap_;
  int row_;
  int left_;
  int index_ = 0;
};

}  // namespace aten_ext::cuda
