// The recurrence of a layer over the whole GPU in fp32: one launch for all steps, W_hh in registers, plain
// fused multiply-adds. H up to 1024; see grid.cuh for how the blocks share the state.
//
// Warp w of a block has columns [128 w, 128 w + 128) of the kGates * kUnits rows of its block's units: lane l
// of it has 128 w + 2 l + {0, 1} and the columns 64 further on. A step, kRows rows of the batch at once: two
// pairs of words a row from the L2, 4 * kGates * kUnits FMAs a row, sums over the lanes (reduce.cuh), partial
// sums to shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/grid.cuh"
#include "ops/rnn/reduce.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// A lane's weights: units, gates, and two neighbouring columns twice.
template <typename Shape>
using GridFmaWeights = float2[Shape::kUnits][Shape::kGates][2];

// W_hh of the block's units, columns column[0] and column[1], once. Zero beyond the last column.
template <typename Shape>
__device__ __forceinline__ void load_weights(GridFmaWeights<Shape>& weights, const float* w_hh,
                                             int first_unit, int hidden, const int (&column)[2]) {
  const bool vectors = hidden % 2 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(float2) == 0;
  const auto load_two = [&](const float* row, int c) {
    if (vectors && c < hidden) {
      return *reinterpret_cast<const float2*>(row + c);
    }
    return float2{c < hidden ? row[c] : 0.0f, c + 1 < hidden ? row[c + 1] : 0.0f};
  };
#pragma unroll
  for (int unit = 0; unit < Shape::kUnits; ++unit) {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      // A unit that does not exist takes the row of one that does: its results are not stored.
      const int64_t row = static_cast<int64_t>(gate) * hidden + min(first_unit + unit, hidden - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[unit][gate][half] = load_two(w_hh + row * hidden, column[half]);
      }
    }
  }
}

// This lane's columns of kRows rows of the state, from `row0`. The first step's state is h0.
template <typename Shape>
__device__ __forceinline__ void load_state(float2 (&h)[Shape::kRows][2], const GridExchange& words,
                                           const float* h0, const RnnPlace& place, int64_t step, int row0,
                                           int hidden, const int (&column)[2]) {
  constexpr int kRows = Shape::kRows;
  if (step == 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = place.first_row + min(row0 + r, place.rows - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = column[half];
        h[r][half].x = c < hidden ? h0[row * hidden + c] : 0.0f;
        h[r][half].y = c + 1 < hidden ? h0[row * hidden + c + 1] : 0.0f;
      }
    }
    return;
  }
  WordPair pairs[2 * kRows] = {};
  uint32_t missing = 0;
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    missing |= row0 + i / 2 < place.rows && column[i % 2] < hidden ? 1u << i : 0u;
  }
  const uint64_t* const from = words.of(step) + static_cast<int64_t>(row0) * kGridFmaColumns + column[0];
  GridPoll<PairOfWords<32>, 2 * kRows, 2, kGridFmaColumns, 64> poll{from, missing,
                                                                    static_cast<uint32_t>(step)};
  poll.issue(pairs);
  poll.complete(pairs);
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) {
    h[i / 2][i % 2] = {__uint_as_float(static_cast<uint32_t>(pairs[i].first)),
                       __uint_as_float(static_cast<uint32_t>(pairs[i].second))};
  }
}

// The sums of kRows rows over this warp's columns, to `to` [kGates, kGridWarps, sums_of_part].
template <typename Shape>
__device__ __forceinline__ void multiply_rows(float* to, const GridFmaWeights<Shape>& weights,
                                              const float2 (&h)[Shape::kRows][2], int sums_of_part, int row0,
                                              int warp, int lane) {
  constexpr int kUnits = Shape::kUnits;
  constexpr int kGates = Shape::kGates;
  constexpr int kPairs = kUnits * Shape::kRows;
  constexpr int kLanes = 32 / kPairs;  // that have the same sum in the end
  float sums[kPairs][kGates];
#pragma unroll
  for (int i = 0; i < kPairs * kGates; ++i) {
    const float2(&w)[2] = weights[i / kGates % kUnits][i % kGates];
    const float2(&x)[2] = h[i / kGates / kUnits];
    sums[i / kGates][i % kGates] =
        fmaf(w[1].y, x[1].y, fmaf(w[1].x, x[1].x, fmaf(w[0].y, x[0].y, w[0].x * x[0].x)));
  }
  reduce_over_team<32>(sums, lane);
  if (lane % kLanes == 0) {
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      to[(gate * kGridWarps + warp) * sums_of_part + row0 * kUnits + lane / kLanes] = sums[0][gate];
    }
  }
}

template <typename Cell, typename Shape>
__global__ __launch_bounds__(kGridThreads,
                             1) void rnn_grid_fma_kernel(const __grid_constant__ RnnArguments a) {
  using Finish = GridFinish<Cell, float, typename Shape::Finish>;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kGates = Cell::kGates;
  constexpr int kRows = Shape::kRows;
  constexpr int kParts = Shape::kParts;

  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const RnnPlace place = rnn_place(a);
  const RnnDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int sums_of_part = Shape::sums(a.rows);
  float* const inputs = dynamic_shared<float>();
  float* const partial = inputs + Shape::Finish::kInputs;  // [2, kGates, kGridWarps, sums_of_part]
  const auto* const h0 = static_cast<const float*>(d.h0);

  const int column[2] = {warp * 128 + 2 * lane, warp * 128 + 2 * lane + 64};
  GridFmaWeights<Shape> weights;
  load_weights<Shape>(weights, static_cast<const float*>(d.w_hh), place.first_unit, hidden, column);

  Finish finish(a, place, inputs, warp, lane);
  const GridExchange words(a, grid_fma_words(a.rows));
  const int finishing = Finish::warps(place.rows);

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    float* const part = partial + (step & 1) * kGates * kGridWarps * sums_of_part;
    before_products(step, warp < finishing);
    for (int row0 = 0; row0 < place.rows; row0 += kRows) {
      float2 h[kRows][2];
      load_state<Shape>(h, words, h0, place, step, row0, hidden, column);
      multiply_rows<Shape>(part, weights, h, sums_of_part, row0, warp, lane);
    }

    if (!meet(step, warp < finishing, warp * 128 < hidden)) {
      continue;
    }
    float sum[Finish::kItems][kGates] = {};
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = min(finish.row(j), place.rows - 1);
#pragma unroll
      for (int k = 0; k < kGridWarps / kParts; ++k) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          sum[j][gate] += part[(gate * kGridWarps + k * kParts + finish.part) * sums_of_part + row * kUnits +
                               lane % kUnits];
        }
      }
    }
    products_read(step, a.steps, finishing);
    float next[Finish::kItems];
    finish.compute(next, sum, place);
    if (!last) {
#pragma unroll
      for (int j = 0; j < Finish::kItems; ++j) {
        if (finish.part == 0 && finish.row(j) < place.rows) {
          store_word(words.of(step + 1) + static_cast<int64_t>(finish.row(j)) * kGridFmaColumns + finish.unit,
                     static_cast<uint64_t>(step + 1) << 32 | __float_as_uint(next[j]));
        }
      }
    }
    finish.write(a, place, next, step, last);
    if (!last) {
      finish.load_inputs(a, place);
    }
  }
}

}  // namespace aten_ext::cuda
