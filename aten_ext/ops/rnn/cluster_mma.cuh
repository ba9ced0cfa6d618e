// The recurrence of a layer where a block, or a thread-block cluster, has the whole state, on tensor cores:
// one launch for all steps, W_hh in registers as the A operand.
//
// kSplits warps, a group, have 16 hidden units: for each gate a tile of 16 rows of W_hh, so that the
// fragments of a lane hold all sums of the same unit. Each warp has a part of the columns. B is h in shared
// memory, 8 rows of the batch at a time (kTiles times). The warps of a group give each other their products,
// and each lane finishes kOwn results (a unit of a row) in fp32. The state that is carried over stays in
// fp32; only the product sees it rounded to the operand's type. Exchange: cluster_exchange.cuh.
//
// The order of columns within a product is free as long as A and B agree. So lane t of four takes 16
// neighbouring bytes of each 64 (not the two times four that the fragment's picture shows): one 16-byte load
// of A or B is the operand of two mma, and rows of h 64 bytes apart modulo 128 are read without bank
// conflict.
//
// FLOPs of a step: 2 * kGates * H^2 a row. The limit is latency: docs/kernels/rnn.md has the budget of a
// step.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/arguments.cuh"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/exchange.cuh"
#include "ops/rnn/first_state.cuh"
#include "ops/rnn/operands.cuh"
#include "ops/rnn/projection_ring.cuh"
#include "ops/rnn/saving.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// A lane's part of W_hh: rows g and g + 8 of each gate's tile, 16 bytes of each pair of mma.
template <typename Shape>
struct MmaWeights {
  uint4 low[Shape::kGates][Shape::kPairs];
  uint4 high[Shape::kGates][Shape::kPairs];
};

// Once. `unit` is the lane's row g, `first_column` its first column.
template <typename Element, typename Shape>
__device__ __forceinline__ void load_weights(MmaWeights<Shape>& weights,
                                             const typename RnnMma<Element>::Tensor* w_hh, int unit,
                                             int first_column, int hidden) {
  using Tensor = typename RnnMma<Element>::Tensor;
  const bool vectors = hidden % (16 / static_cast<int>(sizeof(Tensor))) == 0 && is_vector_aligned(w_hh);
  if (vectors) {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      const Tensor* const row = w_hh + (static_cast<int64_t>(gate) * hidden + unit) * hidden;
#pragma unroll
      for (int pair = 0; pair < Shape::kPairs; ++pair) {
        const int column = first_column + pair * kMmaPairColumns<Element>;
        weights.low[gate][pair] = uint4{0, 0, 0, 0};
        weights.high[gate][pair] = uint4{0, 0, 0, 0};
        if (column < hidden && unit < hidden) {
          weights.low[gate][pair] = *reinterpret_cast<const uint4*>(row + column);
        }
        if (column < hidden && unit + 8 < hidden) {
          weights.high[gate][pair] =
              *reinterpret_cast<const uint4*>(row + 8 * static_cast<int64_t>(hidden) + column);
        }
      }
    }
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
      for (int pair = 0; pair < Shape::kPairs; ++pair) {
        to_operands<Element>(weights.low[gate][pair]);
        to_operands<Element>(weights.high[gate][pair]);
      }
    }
  } else {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      const Tensor* const row = w_hh + (static_cast<int64_t>(gate) * hidden + unit) * hidden;
#pragma unroll
      for (int pair = 0; pair < Shape::kPairs; ++pair) {
        const int column = first_column + pair * kMmaPairColumns<Element>;
        weights.low[gate][pair] =
            load_operands<Element>(unit < hidden ? row : nullptr, column, hidden, false);
        weights.high[gate][pair] = load_operands<Element>(
            unit + 8 < hidden ? row + 8 * static_cast<int64_t>(hidden) : nullptr, column, hidden, false);
      }
    }
  }
}

// Sums of a turn: tiles of 8 rows, gates, and the four values of a lane's fragment.
template <typename Shape>
using MmaSums = float[Shape::kTiles][Shape::kGates][4];

// A turn's products with this warp's columns. `h` is the lane's first element of the turn's first row.
template <typename Element, typename Shape>
__device__ __forceinline__ void multiply_turn(MmaSums<Shape>& result, const MmaWeights<Shape>& weights,
                                              const typename RnnMma<Element>::Operand* h, int stride) {
  using Mma = RnnMma<Element>;
  // Chains of mma that do not wait for each other: one for each gate, and twice that where few warps run.
  constexpr int kChains = Shape::kTiles == 1 && Shape::kPairs <= 4 && Shape::kThreads <= 256 ? 2 : 1;
  float sums[kChains][Shape::kTiles][Shape::kGates][4] = {};
#pragma unroll
  for (int pair = 0; pair < Shape::kPairs; ++pair) {
#pragma unroll
    for (int tile = 0; tile < Shape::kTiles; ++tile) {
      const uint4 x =
          *reinterpret_cast<const uint4*>(h + tile * 8 * stride + pair * kMmaPairColumns<Element>);
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
        const uint4& l = weights.low[gate][pair];
        const uint4& u = weights.high[gate][pair];
        Mma::multiply_add(sums[0][tile][gate], {l.x, u.x, l.y, u.y}, {x.x, x.y});
        Mma::multiply_add(sums[kChains - 1][tile][gate], {l.z, u.z, l.w, u.w}, {x.z, x.w});
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        result[tile][gate][i] =
            kChains == 2 ? sums[0][tile][gate][i] + sums[kChains - 1][tile][gate][i] : sums[0][tile][gate][i];
      }
    }
  }
}

// The results that a lane finishes: kOwn neighbours of 4 * tile + i (see the fragments), its split's share.
// The first is at `row` of a turn's rows and at `unit` of the group's; result j is row(j) and unit(j)
// further.
template <typename Shape>
struct OwnResults {
  static constexpr int kCount = Shape::kOwn;
  static constexpr bool kUnits = true;
  int first;
  bool any;  // of more splits than results some have none

  __device__ __forceinline__ explicit OwnResults(int split)
      : first(Shape::kResults >= Shape::kSplits ? split * Shape::kOwn : split),
        any(Shape::kResults >= Shape::kSplits || split < Shape::kResults) {}

  __device__ __forceinline__ int first_row(int in_four) const {
    return first / 4 * 8 + 2 * in_four + first % 2;
  }
  __device__ __forceinline__ int first_unit(int group_of_four) const {
    return group_of_four + first % 4 / 2 * 8;
  }
  static __device__ __forceinline__ constexpr int row(int j) {
    return j / 4 * 8 + j % 2;
  }
  static __device__ __forceinline__ constexpr int unit(int j) {
    return j % 4 / 2 * 8;
  }
};

// The sums of this lane's own results over all columns. Each split's products of a result go to the split
// that finishes it, through `products` [kSplits, kResults, kGates, 32] of the group (this lane's column of
// it).
template <typename Shape>
__device__ __forceinline__ void gather_own(float (&own)[Shape::kOwn][Shape::kGates],
                                           const MmaSums<Shape>& sums, float* products,
                                           const OwnResults<Shape>& results, int split, int group) {
  constexpr int kGates = Shape::kGates;
  constexpr int kOwn = Shape::kOwn;
  constexpr int kResults = Shape::kResults;
  if constexpr (Shape::kSplits == 1) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        own[j][gate] = sums[j / 4][gate][j % 4];
      }
    }
  } else {
#pragma unroll
    for (int result = 0; result < kResults; ++result) {
      const bool mine = result / kOwn == split;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        const float sum = sums[result / 4][gate][result % 4];
        if (!mine) {
          products[((split * kResults + result) * kGates + gate) * 32] = sum;
        }
        own[result % kOwn][gate] = mine || result < kOwn ? sum : own[result % kOwn][gate];
      }
    }
    sync_named(1 + group, Shape::kSplits * 32);
    if (results.any) {
#pragma unroll
      for (int other = 1; other < Shape::kSplits; ++other) {
        const int from = (split + other) % Shape::kSplits;
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            own[j][gate] += products[((from * kResults + results.first + j) * kGates + gate) * 32];
          }
        }
      }
    }
  }
}

// Where this lane's results go: y of each step, and hy; and what a cell saves.
template <typename Cell, typename Tensor, typename Shape>
__device__ __forceinline__ void store_results(const RnnArguments& a, const RnnPlace& place, Tensor* y,
                                              const float (&values)[Shape::kOwn],
                                              const typename Cell::State (&states)[Shape::kOwn], int step,
                                              int row, int unit, bool last) {
  using Own = OwnResults<Shape>;
#pragma unroll
  for (int j = 0; j < Shape::kOwn; ++j) {
    if (row + Own::row(j) < place.rows && unit + Own::unit(j) < place.end_unit) {
      y[Own::row(j) * a.y.row + Own::unit(j)] = from_op<Tensor>(values[j]);
      save_step<Cell, Tensor>(a, place, step, row + Own::row(j), unit + Own::unit(j), states[j]);
      if (last) {
        const RnnDirectionArguments& d = a.direction[place.direction];
        const int64_t at =
            static_cast<int64_t>(place.first_row + row + Own::row(j)) * a.hidden + unit + Own::unit(j);
        static_cast<Tensor*>(d.hy)[at] = from_op<Tensor>(values[j]);
        if (wants_fp32_state<Tensor>(d)) {
          d.hy_fp32[at] = values[j];
        }
        store_carried<Cell, Tensor>(a, place, row + Own::row(j), unit + Own::unit(j), states[j]);
      }
    }
  }
}

template <typename Cell, typename Element, typename Shape>
__global__ __launch_bounds__(Shape::kThreads,
                             1) void rnn_cluster_mma_kernel(const __grid_constant__ RnnArguments a) {
  static_assert(Shape::kGates == Cell::kGates && Shape::kStates == Cell::kStates);
  static_assert(Shape::kOperandBytes == sizeof(typename RnnMma<Element>::Operand));
  using Mma = RnnMma<Element>;
  using Tensor = typename Mma::Tensor;
  using Operand = typename Mma::Operand;
  using Own = OwnResults<Shape>;
  constexpr int kSplits = Shape::kSplits;
  constexpr int kOwn = Shape::kOwn;
  constexpr int kAhead = Shape::kAhead;
  constexpr int kThreads = Shape::kThreads;
  constexpr int kVector = 16 / sizeof(Operand);
  constexpr int kRows = 8 * Shape::kTiles;

  launch_dependents();
  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const RnnPlace place = rnn_place(a);
  const RnnDirectionArguments& d = a.direction[place.direction];
  const PaddedSequence sequence = rnn_sequence(a, place);
  const int hidden = a.hidden;
  const int group = thread / 32 / kSplits;  // of 16 units
  const int split = thread / 32 % kSplits;
  const int stride = Shape::row_stride(a.units);
  const int buffer_size = Shape::padded_rows(a.rows) * stride;
  const int steps = static_cast<int>(a.steps);

  uint64_t* const arrived = dynamic_shared<uint64_t>();
  Operand* const buffers = reinterpret_cast<Operand*>(arrived + 2);
  float* const products = reinterpret_cast<float*>(buffers + 2 * buffer_size);
  float* const projections = products + Shape::products(a.units);
  float* const carried = projections + kAhead * kOwn * Cell::kGates * kThreads + thread;
  const ClusterExchange<Shape::kBlocks, Operand> exchange(arrived, place, a.units, thread);

  const auto* const h0 = static_cast<const Tensor*>(d.h0) + static_cast<int64_t>(place.first_row) * hidden;
  issue_first_state(buffers, stride, h0, place.rows, hidden, thread);
  const int first_column = split * Shape::kPairs * kMmaPairColumns<Element> + in_four * kVector;
  MmaWeights<Shape> weights;
  load_weights<Element, Shape>(weights, static_cast<const Tensor*>(d.w_hh),
                               place.first_unit + group * 16 + group_of_four, first_column, hidden);

  const Own own_results(split);
  const bool has_own = own_results.any;
  const int own_row = own_results.first_row(in_four);
  const int own_unit = place.first_unit + group * 16 + own_results.first_unit(group_of_four);
  const int turns = (place.rows + kRows - 1) / kRows;

  ProjectionRing<Cell, Own, kThreads, kRows, kAhead> projection(a, place, projections, thread, own_row,
                                                                own_unit, turns, turns * kRows, has_own);
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    projection.fetch(a, place);
  }
  // Of units g and g + 8, or of the one that all own results are of.
  constexpr int kBiases = kOwn < 4 ? 1 : 2;
  typename Cell::Bias bias[kBiases];
#pragma unroll
  for (int i = 0; i < kBiases; ++i) {
    const int unit = own_unit + 8 * i;
    bias[i] = Cell::template load_bias<Tensor>(d.b_ih, d.b_hh, hidden, unit, unit < place.end_unit);
  }
  const auto bias_of = [&](int j) -> const auto& { return bias[j % 4 / 2 % kBiases]; };

  const BlockSlice slice =
      block_slice(thread, place.rows, a.units / kVector, stride * static_cast<int>(sizeof(Operand)));

  Tensor* y = static_cast<Tensor*>(d.y) + sequence.offset(a.y, 0, place.first_row + own_row) + own_unit;
  const int64_t y_turn = kRows * a.y.row;
  const int64_t y_step = sequence.advance(a.y, 0) - (turns - 1) * y_turn;

  // The state in fp32: of the only turn in registers, of several in shared memory, [turns, 1 + kStates, kOwn,
  // kThreads].
  constexpr int kCarriedTurn = (1 + Cell::kStates) * kOwn * kThreads;
  float values[kOwn];
  typename Cell::State states[kOwn];
#pragma unroll 4
  for (int row0 = 0; row0 < place.rows; row0 += kRows) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int row = row0 + own_row + Own::row(j);
      const int unit = own_unit + Own::unit(j);
      const bool exists = has_own && row < place.rows && unit < hidden;
      const int64_t at = static_cast<int64_t>(place.first_row + row) * hidden + unit;
      values[j] = exists ? load_first_value<Tensor>(d, at) : 0.0f;
      float* const to = carried + row0 / kRows * kCarriedTurn + j * kThreads;
      if (turns > 1) {
        *to = values[j];
      }
      if constexpr (Cell::kStates > 0) {
        states[j] = load_carried<Cell, Tensor>(a, place, row, unit, exists);
        keep_carried<Cell>(to + kOwn * kThreads, states[j]);
      }
    }
  }
  complete_first_state<kAhead, std::is_same_v<Operand, Tensor>>(
      buffers, buffer_size, stride, place.rows, hidden, thread, [](uint4& x) { to_operands<Element>(x); });
  __syncthreads();
  exchange.start();

  typename Cell::Input input[kOwn];
  const auto read_input = [&] {
    projection.wait();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      input[j] = projection.read(j, bias_of(j));
    }
  };
  read_input();
  const Operand* h = buffers + group_of_four * stride + first_column;
  Operand* next_own = buffers + buffer_size + own_row * stride + own_unit;
  Operand* next_slice = buffers + buffer_size + place.first_unit;
  float* const of_group = products + group * kSplits * Shape::kResults * Cell::kGates * 32 + lane;
  int to_other = buffer_size;  // from a buffer to the other
  int half = 0;                // of `products`, in turn
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    exchange.wait(step);

    for (int row0 = 0;;) {
      MmaSums<Shape> sums;
      multiply_turn<Element, Shape>(sums, weights, h + row0 * stride, stride);
      float own[kOwn][Cell::kGates];
      gather_own<Shape>(own, sums, of_group + half, own_results, split, group);
      half = Shape::products(a.units) / 2 - half;

      float* const my_carried = carried + row0 / kRows * kCarriedTurn;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const float before = turns == 1 ? values[j] : my_carried[j * kThreads];
        if (turns > 1) {
          fetch_carried<Cell>(states[j], my_carried + (kOwn + j) * kThreads);
        }
        const float value = Cell::step(input[j], own[j], bias_of(j), before, states[j]);
        values[j] = own_unit + Own::unit(j) < place.end_unit ? value : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (has_own && row0 + own_row + Own::row(j) < place.rows) {
          next_own[(row0 + Own::row(j)) * stride + Own::unit(j)] = Mma::to_operand(values[j]);
        }
      }
      const int end_row0 = row0 + kRows;
      const bool more = end_row0 < place.rows;
      if (!more) {
        __syncthreads();
        if (!last) {
          exchange.send(slice, next_slice, step + 1);
        }
      }
      // What no one waits for, while the state is on its way.
      if (turns > 1) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
          my_carried[j * kThreads] = values[j];
          keep_carried<Cell>(my_carried + (kOwn + j) * kThreads, states[j]);
        }
      }
      if (has_own) {
        store_results<Cell, Tensor, Shape>(a, place, y, values, states, step, row0 + own_row, own_unit, last);
      }
      projection.fetch(a, place);
      read_input();
      row0 = end_row0;
      if (!more) {
        break;
      }
      y += y_turn;
    }
    y += y_step;
    h += to_other;
    next_own -= to_other;
    next_slice -= to_other;
    to_other = -to_other;
  }
}

}  // namespace aten_ext::cuda
