// The recurrence of a layer where a block, or a thread-block cluster, has the whole state, with plain fused
// multiply-adds in fp32: one launch for all steps, W_hh in registers (16-bit tensors too, as fp32).
//
// A team of kTeam lanes owns kUnits hidden units: of W_hh the kGates * kUnits rows, of which lane l of the
// team holds the columns 4 * kTeam * j + 4 l + {0..3}, vector j = 0, 1, ... A step, for one row of the batch:
// read h from shared memory (16 bytes a lane), 4 * kGates * kUnits FMAs for each such vector, and sum over
// the lanes (reduce.cuh), after which kLanes = kTeam / kUnits lanes have the same sums. Of a turn of up to
// kLanes rows each of these lanes keeps another, so that gates, projections and stores of y are done once for
// all of them. The new state goes to the block's own shared memory, and after a __syncthreads to the other
// blocks (cluster_exchange.cuh). What no one waits for, y and projections of later steps, follows after that.
//
// FLOPs of a step: 2 * kGates * H^2 a row. The limit is latency: docs/kernels/rnn.md has the budget of a
// step. Largest error of a GRU against float64 after 9 steps, of values around 0.5: 2e-7.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/arguments.cuh"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/exchange.cuh"
#include "ops/rnn/first_state.cuh"
#include "ops/rnn/projection_ring.cuh"
#include "ops/rnn/reduce.cuh"
#include "ops/rnn/saving.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// Four columns of a row of W_hh from `column`, zero beyond the last.
template <typename T>
__device__ __forceinline__ float4 load_columns(const T* row, int column, int hidden) {
  float w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = column + i < hidden ? to_op(row[column + i]) : 0.0f;
  }
  return {w[0], w[1], w[2], w[3]};
}
// The same where rows are vectors of four, as they lie in memory.
template <typename T>
using FourBits = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
template <typename T>
__device__ __forceinline__ FourBits<T> load_four(const T* row, int column, int hidden) {
  FourBits<T> bits{};
  if (column < hidden) {
    bits = *reinterpret_cast<const FourBits<T>*>(row + column);
  }
  return bits;
}
template <typename T>
__device__ __forceinline__ float4 to_float4(const FourBits<T>& bits) {
  T w[4];
  memcpy(&w, &bits, sizeof(bits));
  return {to_op(w[0]), to_op(w[1]), to_op(w[2]), to_op(w[3])};
}

// A lane's weights: vectors of four columns, units, gates.
template <typename Shape>
using LaneWeights = float4[Shape::kVectors][Shape::kUnits][Shape::kGates];

// W_hh of a team's units from `first_unit`, once.
template <typename T, typename Shape>
__device__ __forceinline__ void load_weights(LaneWeights<Shape>& weights, const T* w_hh, int first_unit,
                                             int hidden, int in_team) {
  // The row of a unit's gate. A unit that does not exist takes the row of one that does: its results are not
  // stored.
  const auto weight_row = [&](int i, int gate) {
    return w_hh + (static_cast<int64_t>(gate) * hidden + min(first_unit + i, hidden - 1)) * hidden;
  };
  if (hidden % 4 == 0 && (reinterpret_cast<uintptr_t>(w_hh) & (4 * sizeof(T) - 1)) == 0) {
#pragma unroll
    for (int i = 0; i < Shape::kUnits; ++i) {
      FourBits<T> bits[Shape::kVectors][Shape::kGates];  // all under way before the first is converted
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
        for (int j = 0; j < Shape::kVectors; ++j) {
          bits[j][gate] = load_four(weight_row(i, gate), j * Shape::kColumns + 4 * in_team, hidden);
        }
      }
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
        for (int j = 0; j < Shape::kVectors; ++j) {
          weights[j][i][gate] = to_float4<T>(bits[j][gate]);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < Shape::kUnits; ++i) {
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
        for (int j = 0; j < Shape::kVectors; ++j) {
          weights[j][i][gate] = load_columns(weight_row(i, gate), j * Shape::kColumns + 4 * in_team, hidden);
        }
      }
    }
  }
}

// The dot products of a team's units with one row of h, this lane's part of the columns. `x` is the row's
// first vector when it begins, and that of the row at `next_from` when it ends: each vector is loaded while
// the one before is multiplied.
template <typename Shape>
__device__ __forceinline__ void multiply_row(float (&sums)[Shape::kUnits][Shape::kGates],
                                             const LaneWeights<Shape>& weights, float4& x, const float* from,
                                             const float* next_from) {
#pragma unroll
  for (int j = 0; j < Shape::kVectors; ++j) {
    const float4 next = *reinterpret_cast<const float4*>(
        j + 1 < Shape::kVectors ? from + (j + 1) * Shape::kColumns : next_from);
#pragma unroll
    for (int i = 0; i < Shape::kUnits; ++i) {
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
        const float4& w = weights[j][i][gate];
        float& sum = sums[i][gate];
        sum = fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
      }
    }
    x = next;
  }
}

// The sums of a turn's `rows` rows from `h`. `mine` becomes those of the row that this lane finishes, its
// `member`-th.
template <typename Shape>
__device__ __forceinline__ void multiply_turn(float (&mine)[Shape::kGates], const LaneWeights<Shape>& weights,
                                              const float* h, int rows, int columns, int member, int lane) {
  const float* from = h;
  float4 x = *reinterpret_cast<const float4*>(from);
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    float sums[Shape::kUnits][Shape::kGates] = {};
    const float* const next_from = r + 1 < rows ? from + columns : from;
    multiply_row<Shape>(sums, weights, x, from, next_from);
    from = next_from;
    reduce_over_team<Shape::kTeam>(sums, lane);
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      mine[gate] = r == 0 || member == r ? sums[0][gate] : mine[gate];
    }
  }
}

// A lane has one result in a turn.
struct OneResult {
  static constexpr int kCount = 1;
  static constexpr bool kUnits = false;
  static __device__ __forceinline__ constexpr int row(int /*j*/) {
    return 0;
  }
  static __device__ __forceinline__ constexpr int unit(int /*j*/) {
    return 0;
  }
};

template <typename Cell, typename T, typename Shape>
__global__ __launch_bounds__(Shape::kThreads,
                             1) void rnn_cluster_fma_kernel(const __grid_constant__ RnnArguments a) {
  static_assert(Shape::kGates == Cell::kGates && Shape::kStates == Cell::kStates);
  constexpr int kThreads = Shape::kThreads;
  constexpr int kRows = Shape::kRows;
  constexpr int kAhead = Shape::kAhead;

  launch_dependents();
  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int in_team = lane % Shape::kTeam;
  const RnnPlace place = rnn_place(a);
  const RnnDirectionArguments& d = a.direction[place.direction];
  const PaddedSequence sequence = rnn_sequence(a, place);
  const int hidden = a.hidden;
  const int columns = Shape::columns(a.units);
  const int buffer_size = a.rows * columns;
  uint64_t* const arrived = dynamic_shared<uint64_t>();
  float* const buffers = reinterpret_cast<float*>(arrived + 2);  // of h, [2, rows, columns]
  float* const projections = buffers + 2 * buffer_size;          // [kAhead, kGates, kThreads]
  const int steps = static_cast<int>(a.steps);
  const ClusterExchange<Shape::kBlocks, float> exchange(arrived, place, a.units, thread);

  // The unit whose sums this lane will have, and the row that it finishes, of those of a turn.
  const int first_unit = place.first_unit + thread / Shape::kTeam * Shape::kUnits;
  const int member = in_team % Shape::kLanes;
  const int unit = first_unit + in_team / Shape::kLanes;
  const bool has_unit = unit < place.end_unit;
  const int turns = (place.rows + kRows - 1) / kRows;

  ProjectionRing<Cell, OneResult, kThreads, kRows, kAhead> projection(a, place, projections, thread, member,
                                                                      unit, turns, place.rows, has_unit);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    projection.fetch(a, place);
  }

  LaneWeights<Shape> weights;
  load_weights<T, Shape>(weights, static_cast<const T*>(d.w_hh), first_unit, hidden, in_team);
  const auto bias = Cell::template load_bias<T>(d.b_ih, d.b_hh, hidden, unit, has_unit);
  const BlockSlice slice =
      block_slice(thread, place.rows, a.units / 4, columns * static_cast<int>(sizeof(float)));

  T* y = static_cast<T*>(d.y) + sequence.offset(a.y, 0, place.first_row + member) + unit;
  const int64_t y_turn = kRows * a.y.row;
  const int64_t y_step = sequence.advance(a.y, 0) - (turns - 1) * y_turn;

  const int64_t first_element = static_cast<int64_t>(place.first_row) * hidden;
  if (sizeof(T) < sizeof(float) && d.h0_fp32 != nullptr) {
    load_first_state(buffers, buffer_size, columns, d.h0_fp32 + first_element, place.rows, hidden, thread,
                     [](float x) { return x; });
  } else {
    load_first_state(buffers, buffer_size, columns, static_cast<const T*>(d.h0) + first_element, place.rows,
                     hidden, thread, [](T x) { return to_op(x); });
  }
  // What is carried beside h: of the only turn in registers, of several in shared memory.
  float* const carried = projections + kAhead * Cell::kGates * kThreads + thread;  // [turns, kThreads]
  typename Cell::State state;
  if constexpr (Cell::kStates > 0) {
    for (int turn = turns - 1; turn >= 0; --turn) {
      const int row = turn * kRows + member;
      state = load_carried<Cell, T>(a, place, row, unit, has_unit && row < place.rows);
      keep_carried<Cell>(carried + turn * kThreads, state);
    }
  }
  __syncthreads();
  exchange.start();

  const auto read_input = [&] {
    projection.wait();
    return projection.read(0, bias);
  };
  auto input = read_input();
  const int own = min(member, place.rows - 1) * columns + unit;  // in a buffer, first turn
  float value = buffers[own];
  const float* h = buffers + 4 * in_team;
  float* own_h = buffers + own;
  float* next_own = buffers + buffer_size + own;
  float* next_slice = buffers + buffer_size + place.first_unit;
  int to_other = buffer_size;  // from a buffer to the other
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    exchange.wait(step);

    for (int row0 = 0;;) {
      const int rows = min(kRows, place.rows - row0);
      const float before = turns == 1 || member >= rows ? value : own_h[row0 * columns];
      float mine[Cell::kGates];
      multiply_turn<Shape>(mine, weights, h + row0 * columns, rows, columns, member, lane);
      float* const my_carried = carried + row0 / kRows * kThreads;
      if (turns > 1) {
        fetch_carried<Cell>(state, my_carried);
      }
      value = Cell::step(input, mine, bias, before, state);
      value = has_unit ? value : 0.0f;
      if (member < rows) {
        next_own[row0 * columns] = value;
      }
      const int row = row0 + member;
      const bool finishes = has_unit && member < rows;
      row0 += kRows;
      const bool more = row0 < place.rows;
      if (!more) {
        if constexpr (kThreads == 32) {
          __syncwarp();
        } else {
          __syncthreads();
        }
        if (!last) {
          exchange.send(slice, next_slice, step + 1);
        }
      }
      // What no one waits for, while the state is on its way.
      if (turns > 1) {
        keep_carried<Cell>(my_carried, state);
      }
      if (finishes) {
        *y = from_op<T>(value);
        save_step<Cell, T>(a, place, step, row, unit, state);
        if (last) {
          static_cast<T*>(d.hy)[static_cast<int64_t>(place.first_row + row) * hidden + unit] =
              from_op<T>(value);
          store_carried<Cell, T>(a, place, row, unit, state);
        }
      }
      projection.fetch(a, place);
      input = read_input();
      if (!more) {
        break;
      }
      y += y_turn;
    }
    y += y_step;
    h += to_other;
    own_h += to_other;
    next_own -= to_other;
    next_slice -= to_other;
    to_other = -to_other;
  }
  if (wants_fp32_state<T>(d)) {
    for (int row = member; row < place.rows; row += kRows) {
      if (has_unit) {
        d.hy_fp32[static_cast<int64_t>(place.first_row + row) * hidden + unit] =
            own_h[(row - member) * columns];
      }
    }
  }
}

}  // namespace aten_ext::cuda
