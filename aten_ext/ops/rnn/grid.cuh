// What the two recurrences over the whole GPU share: how the warps of a block meet, and how a warp finishes a
// row. Kernels: grid_fma.cuh (fp32) and grid_mma.cuh (tensor cores).
//
// The blocks of a group have a slice of the hidden units each, and all of them need the whole state at every
// step. It goes through global memory (grid_exchange.cuh). The eight warps of a block share the columns of
// W_hh: a warp multiplies kGates * units rows by its eighth of the columns, so it reads an eighth of the
// state, straight from the L2 into the registers that the product takes it from. The product needs no shared
// memory and no barrier before it, and a warp whose columns are there does not wait for the others'.
//
// The products of the eight parts meet in shared memory behind one barrier. Only those warps wait for it
// which finish a row. Products and barriers are double-buffered: a warp may run a step ahead of another (its
// columns need not include its own block's units), never two.
//
// The limit is latency: the way of a word through the L2 takes 0.7 us of a step. From 8 rows on it is the
// L2's bandwidth, because every block reads the state in words twice its size. Budget: docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/async_copy.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/arguments.cuh"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/exchange.cuh"
#include "ops/rnn/first_state.cuh"
#include "ops/rnn/saving.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// A warp that finishes rows waits until all products of the step are there; returns whether this one does.
// The others only arrive, and wait for their columns of the next step. A warp without columns would wait for
// nothing, so it waits here.
__device__ __forceinline__ bool meet(int64_t step, bool finishes, bool has_columns) {
  const int barrier = 1 + static_cast<int>(step & 1);
  if (finishes || !has_columns) {
    sync_named(barrier, kGridThreads);
  } else {
    arrive_named(barrier, kGridThreads);
  }
  return finishes;
}

// Products have two buffers: those of step t overwrite those of step t - 2. A warp that only arrives at
// meet() must not overwrite what another still reads, and the words see to that: the words it has waited for
// were sent by blocks that had the words of this block's finishing warps, and these had read the products by
// then.
//
// racecheck does not see an order that goes through global memory and reports the writes. Compiled with
// ATEN_EXT_RACECHECK, the order goes through a named barrier as well, so that it can check the rest
// (scripts/sanitize). In every build that barrier would cost up to 7 % of a step.
#ifdef ATEN_EXT_RACECHECK
constexpr bool kRacecheck = true;
#else
constexpr bool kRacecheck = false;
#endif

__device__ __forceinline__ void products_read(int64_t step, int64_t steps, int finishing) {
  if (kRacecheck && finishing < kGridWarps && step + 2 < steps) {
    arrive_named(3 + static_cast<int>(step & 1), kGridThreads);
  }
}
__device__ __forceinline__ void before_products(int64_t step, bool finishes) {
  if (kRacecheck && !finishes && step >= 2) {
    sync_named(3 + static_cast<int>(step & 1), kGridThreads);
  }
}

// A warp finishes kRowsOfWarp rows at a time, kItems times. Of its lanes, kParts have the same unit and row,
// share the sums and compute the same: with few rows, that is shorter.
template <typename Cell, typename Tensor, typename Shape>
struct GridFinish {
  static constexpr int kGates = Cell::kGates;
  static constexpr int kUnits = Shape::kUnits;
  static constexpr int kParts = Shape::kParts;
  static constexpr int kItems = Shape::kItems;
  static constexpr int kRowsOfWarp = Shape::kRowsOfWarp;
  static constexpr int kTurn = kGridWarps * kRowsOfWarp;  // rows from an item to the next
  static_assert(Shape::kGates == kGates);

  int unit;  // of the layer
  int part;
  int first_row;  // of this lane in the group
  bool exists;    // the unit
  typename Cell::Bias bias;
  float h[kItems];  // in fp32 whatever the dtype
  typename Cell::State states[kItems];
  float* inputs;
  const float* projection;  // of the step whose input is loaded next
  Tensor* y;                // of this step

  __device__ __forceinline__ GridFinish(const RnnArguments& a, const RnnPlace& place, float* shared, int warp,
                                        int lane)
      : unit(place.first_unit + lane % kUnits),
        part(lane / kUnits % kParts),
        first_row(warp * kRowsOfWarp + lane / (kUnits * kParts)),
        exists(unit < place.end_unit),
        inputs(shared + threadIdx.x) {
    const RnnDirectionArguments& d = a.direction[place.direction];
    const PaddedSequence sequence = rnn_sequence(a, place);
    const int64_t batch_row = place.first_row + first_row;
    projection = d.projection + sequence.offset(a.projection, 0, batch_row) + unit;
    y = static_cast<Tensor*>(d.y) + sequence.offset(a.y, 0, batch_row) + unit;
    bias = Cell::template load_bias<Tensor>(d.b_ih, d.b_hh, a.hidden, unit, exists);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      const bool given = exists && row(j) < place.rows;
      h[j] = 0.0f;
      if (given) {
        const int64_t at = static_cast<int64_t>(place.first_row + row(j)) * a.hidden + unit;
        h[j] = load_first_value<Tensor>(d, at);
      }
      states[j] = load_carried<Cell, Tensor>(a, place, row(j), unit, given);
    }
    load_inputs(a, place);
  }

  static __device__ __forceinline__ int warps(int rows) {
    return min(kGridWarps, (rows + kRowsOfWarp - 1) / kRowsOfWarp);
  }
  __device__ __forceinline__ int row(int j) const {
    return first_row + j * kTurn;
  }

  // Of the next step: they have a whole step's time.
  __device__ __forceinline__ void load_inputs(const RnnArguments& a, const RnnPlace& place) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (exists && row(j) < place.rows) {
        const float* const from = projection + j * kTurn * a.projection.row;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          copy_async_4(inputs + (j * kGates + gate) * kGridThreads,
                       from + gate * static_cast<int64_t>(a.hidden));
        }
      }
    }
    commit_async_copies();
    projection += rnn_sequence(a, place).advance(a.projection, 0);
  }

  // h' of all items from this lane's shares of the sums. All lanes of a warp together.
  __device__ __forceinline__ void compute(float (&next)[kItems], float (&sum)[kItems][kGates],
                                          const RnnPlace& place) {
    wait_async_copies<0>();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
#pragma unroll
      for (int width = kUnits; width < kUnits * kParts; width *= 2) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          sum[j][gate] += __shfl_xor_sync(0xffffffff, sum[j][gate], width);
        }
      }
      float x[kGates];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        x[gate] = inputs[(j * kGates + gate) * kGridThreads];
      }
      const float value = Cell::step(Cell::input(x, bias), sum[j], bias, h[j], states[j]);
      next[j] = exists && row(j) < place.rows ? value : 0.0f;
    }
  }

  // Once the states are on their way to the others.
  __device__ __forceinline__ void write(const RnnArguments& a, const RnnPlace& place,
                                        const float (&next)[kItems], int64_t step, bool last) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      h[j] = next[j];
      if (exists && part == kParts - 1 && row(j) < place.rows) {
        y[j * kTurn * a.y.row] = from_op<Tensor>(next[j]);
        save_step<Cell, Tensor>(a, place, step, row(j), unit, states[j]);
        if (last) {
          const int64_t at = static_cast<int64_t>(place.first_row + row(j)) * a.hidden + unit;
          const RnnDirectionArguments& d = a.direction[place.direction];
          static_cast<Tensor*>(d.hy)[at] = from_op<Tensor>(next[j]);
          if (wants_fp32_state<Tensor>(d)) {
            d.hy_fp32[at] = next[j];
          }
          store_carried<Cell, Tensor>(a, place, row(j), unit, states[j]);
        }
      }
    }
    y += rnn_sequence(a, place).advance(a.y, 0);
  }
};

}  // namespace aten_ext::cuda
