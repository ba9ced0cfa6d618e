// The recurrence of a layer in fp32 over the whole GPU: one launch for all steps, W_hh in registers,
// plain fused multiply-adds.
//
// A team of kTeam lanes (a warp or half of one) owns kUnits hidden units: of W_hh the kGates * kUnits rows,
// of which lane l of the team holds the columns 4 * kTeam * j + 4 l + {0..3}, vector j = 0, 1, ... The first
// kVectors vectors stay in registers for the whole sequence, the next a.shared_vectors in shared memory, any
// others are read from global memory (the L2) in each step. A step of a team, for kRows rows of the batch at
// once: read h from shared memory (16 bytes a lane, no bank conflict), 4 * kGates * kUnits FMAs for each such
// vector, sum over the lanes (reduce.cuh), gates, publish.
//
// What an LSTM carries beside h is in cy between two steps: it is fp32, and a lane reads what its own team
// has written.
//
// Registers (ptxas, sm_90a): weights never leave them. Shapes with 192 weights a thread and the exchange
// through global memory, or with 96 in 512 threads, keep a few addresses in local memory, read once a step.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/arguments.cuh"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/exchange.cuh"
#include "ops/rnn/first_state.cuh"
#include "ops/rnn/reduce.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

__device__ __forceinline__ float multiply_add_four(const float4& w, const float4& h, float sum) {
  return fmaf(w.w, h.w, fmaf(w.z, h.z, fmaf(w.y, h.y, fmaf(w.x, h.x, sum))));
}

// Four columns of a row of W_hh from `column`, zero beyond the last.
__device__ __forceinline__ float4 load_four_weights(const float* row, int column, int hidden, bool vectors) {
  if (vectors && column + 3 < hidden) {
    return *reinterpret_cast<const float4*>(row + column);
  }
  float4 w;
  w.x = column + 0 < hidden ? row[column + 0] : 0.0f;
  w.y = column + 1 < hidden ? row[column + 1] : 0.0f;
  w.z = column + 2 < hidden ? row[column + 2] : 0.0f;
  w.w = column + 3 < hidden ? row[column + 3] : 0.0f;
  return w;
}

template <typename Cell, typename Shape>
__global__ __launch_bounds__(Shape::kThreads) void rnn_fma_kernel(const __grid_constant__ RnnArguments a) {
  static_assert(Shape::kGates == Cell::kGates);
  constexpr int kGates = Cell::kGates;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kVectors = Shape::kVectors;
  constexpr int kRows = Shape::kRows;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kPairs = kUnits * kRows;
  constexpr int kLanes = Shape::kTeam / kPairs;  // that have the same unit in the end

  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_team = lane % Shape::kTeam;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const RnnPlace place = rnn_place(a);
  const RnnDirectionArguments& d = a.direction[place.direction];
  const PaddedSequence sequence = rnn_sequence(a, place);
  const int hidden = a.hidden;
  const int columns = Shape::columns(hidden);
  const int padded_rows = (a.rows + kRows - 1) / kRows * kRows;
  float* const buffers = dynamic_shared<float>();  // [padded_rows, columns]
  float4* const shared_weights =                   // [shared_vectors, kUnits * kGates, warps, 32]
      reinterpret_cast<float4*>(buffers + padded_rows * columns);

  // Zero, also where no unit ever writes: the weights there are zero, and zero times NaN is not.
  for (int i = static_cast<int>(threadIdx.x); i < padded_rows * columns; i += static_cast<int>(blockDim.x)) {
    const int row = i / columns;
    const int column = i % columns;
    const bool given = row < place.rows && column < hidden;
    buffers[i] =
        given ? static_cast<const float*>(d.h0)[static_cast<int64_t>(place.first_row + row) * hidden + column]
              : 0.0f;
  }

  // W_hh, once.
  const auto* const w_hh = static_cast<const float*>(d.w_hh);
  const int first_unit = place.first_unit + static_cast<int>(threadIdx.x) / Shape::kTeam * kUnits;
  const bool vectors = hidden % 4 == 0 && is_vector_aligned(w_hh);
  const int all_vectors = columns / kColumns;
  // The row of a unit's gate. A unit that does not exist takes the row of one that does: its results are not
  // stored.
  const auto weight_row = [&](int unit, int gate) {
    return w_hh + (static_cast<int64_t>(gate) * hidden + min(first_unit + unit, hidden - 1)) * hidden;
  };
  float4 weights[kVectors][kUnits][kGates];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        weights[j][unit][gate] =
            load_four_weights(weight_row(unit, gate), j * kColumns + 4 * in_team, hidden, vectors);
      }
    }
  }
  for (int j = 0; j < a.shared_vectors; ++j) {
#pragma unroll
    for (int i = 0; i < kUnits * kGates; ++i) {
      shared_weights[((j * kUnits * kGates + i) * warps + warp) * 32 + lane] = load_four_weights(
          weight_row(i / kGates, i % kGates), (kVectors + j) * kColumns + 4 * in_team, hidden, vectors);
    }
  }

  // The unit whose sums this lane will have, and its row among kRows.
  const int pair = in_team / kLanes;
  const int member = in_team % kLanes;
  const int row_of_pair = pair / kUnits;
  const int unit = first_unit + pair % kUnits;
  const bool has_unit = unit < place.end_unit;
  const auto bias = Cell::template load_bias<float>(d.b_ih, d.b_hh, hidden, unit, has_unit);
  // Nothing for rows and units that do not exist.
  float input[kGates] = {};
  const auto load_input = [&](int64_t step, int row) {
    float x[kGates] = {};
    if (has_unit && row < place.rows && step < a.steps) {
      const float* const from =
          d.projection + sequence.offset(a.projection, step, place.first_row + row) + unit;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        x[gate] = from[gate * hidden];
      }
    }
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      input[gate] = x[gate];
    }
  };
  load_input(0, row_of_pair);

  __syncthreads();

  const int directions = static_cast<int>(gridDim.x) / (a.groups * a.blocks);
  const auto words_of_row = [&](int64_t step, int row) {
    return a.words + (((step & 1) * directions + place.direction) * a.batch + place.first_row + row) *
                         static_cast<int64_t>(hidden);
  };

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    const float* const h = buffers;

    for (int row0 = 0; row0 < place.rows; row0 += kRows) {
      const int row = row0 + row_of_pair;
      float sums[kPairs][kGates] = {};
      const auto add = [&](int vector, const auto& weight) {
        float4 x[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          x[r] = *reinterpret_cast<const float4*>(h + (row0 + r) * columns + vector * kColumns + 4 * in_team);
        }
#pragma unroll
        for (int i = 0; i < kUnits * kGates; ++i) {
          const float4 w = weight(i);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            float& sum = sums[r * kUnits + i / kGates][i % kGates];
            sum = multiply_add_four(w, x[r], sum);
          }
        }
      };
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (kVectors == 1 || j < all_vectors) {
          add(j, [&](int i) { return weights[j][i / kGates][i % kGates]; });
        }
      }
      int j = kVectors;
      for (; j < min(all_vectors, kVectors + a.shared_vectors); ++j) {
        const float4* const from =
            shared_weights + ((j - kVectors) * kUnits * kGates * warps + warp) * 32 + lane;
        add(j, [&](int i) { return from[i * warps * 32]; });
      }
      for (; j < all_vectors; ++j) {
        add(j, [&](int i) {
          return load_four_weights(weight_row(i / kGates, i % kGates), j * kColumns + 4 * in_team, hidden,
                                   vectors);
        });
      }
      reduce_over_team<Shape::kTeam>(sums, lane);

      const float before = h[row * columns + min(unit, columns - 1)];
      typename Cell::State state;
      if constexpr (Cell::kStates > 0) {  // between steps it is where it goes in the end
        const bool exists = has_unit && row < place.rows;
        if (step == 0) {
          state = load_carried<Cell, float>(a, place, row, unit, exists);
        } else {
          state.value[0] =
              exists ? static_cast<const float*>(a.cy[place.direction])[carried_at(a, place, row, unit)]
                     : 0.0f;
        }
      }
      const float value = Cell::accurate_step(input, sums[0], bias, before, state);
      // Of the next turn: the loads have until then, and where it is the next step, the barrier's time too.
      const bool more_rows = row0 + kRows < place.rows;
      load_input(more_rows ? step : step + 1, more_rows ? row + kRows : row_of_pair);
      if (has_unit && row < place.rows) {
        if (member == 0) {
          const int64_t batch_row = place.first_row + row;
          static_cast<float*>(d.y)[sequence.offset(a.y, step, batch_row) + unit] = value;
          if (last) {
            static_cast<float*>(d.hy)[batch_row * hidden + unit] = value;
          }
          store_carried<Cell, float>(a, place, row, unit, state);
        }
        if (!last && member == 0) {
          store_flagged(words_of_row(step + 1, row) + unit, __float_as_uint(value),
                        static_cast<uint32_t>(step + 1));
        }
      }
    }
    if (last) {
      break;
    }

    __syncthreads();  // all of this block have read the state that is overwritten now
    receive_words(
        words_of_row(step + 1, 0), place.rows, hidden, static_cast<uint32_t>(step + 1),
        [&](int row, int at, uint32_t data) { buffers[row * columns + at] = __uint_as_float(data); });
    __syncthreads();
  }
}

}  // namespace aten_ext::cuda
