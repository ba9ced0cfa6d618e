// The backward recurrence of a layer where a block, or a thread-block cluster, has all units, with plain
// fused multiply-adds: fp32, one launch for all steps, W_hh in registers.
//
// A block has kUnits units, and of W_hh the kDepth rows of their gates: those that its own gradients are
// multiplied by. A thread has kColumns columns of them. A step: add up the parts of dh that came in, a unit
// and row a thread; the gates' gradients, to shared memory; a __syncthreads; then for each row kDepth
// multiply-adds a column, the gradients read by all threads at once, and what comes out goes to the block
// that has the column's unit (scatter_exchange.cuh). No sums over lanes. What no one waits for, the stores of
// the gradients, follows after that.
//
// FLOPs of a step: 2 * kGates * H^2 a row. The limit is latency: docs/kernels/rnn.md has the budget of a
// step.
#pragma once

#include <cuda_runtime.h>

#include "device/shared.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/items.cuh"
#include "ops/rnn/backward/scatter_exchange.cuh"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/cluster_exchange.cuh"

namespace aten_ext::cuda {

// A thread's columns of the rows of its block's gates: those in registers.
template <typename Shape>
using BackwardFmaWeights = float[Shape::kColumns][Shape::kKeptWeights];

// Rows `first` to first + kCount of the block's gates (row i: of gate i / kUnits) in one column of W_hh. Zero
// where the unit or the column does not exist. The pointer is hidden from the compiler every few rows: it
// would keep an address for each load.
template <typename Shape, int kCount>
__device__ __forceinline__ void load_backward_weights(float* to, const float* w_hh, const RnnPlace& place,
                                                      int hidden, int first, int column) {
  constexpr int kAtOnce = 16;
  static_assert(kCount % 4 == 0);
  int unit = place.first_unit + first % Shape::kUnits;
  const int end = column < hidden ? hidden : 0;
  const float* from = w_hh + (static_cast<int64_t>(first / Shape::kUnits) * hidden + unit) * hidden + column;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    to[i] = unit < end ? *from : 0.0f;
    ++unit;
    from += hidden;
    if ((first + i + 1) % Shape::kUnits == 0) {  // of the next gate
      unit -= Shape::kUnits;
      from += static_cast<int64_t>(hidden - Shape::kUnits) * hidden;
    }
    if (i % kAtOnce == kAtOnce - 1) {
      asm volatile("" : "+l"(from), "+r"(unit));
    }
  }
}

// The products of one row of gates' gradients with this thread's columns. `shared`: the thread's own of the
// weights that registers do not hold, [kSharedWeights / 4, kColumns, kThreads].
template <typename Shape>
__device__ __forceinline__ void multiply_gates(float (&sums)[Shape::kColumns],
                                               const BackwardFmaWeights<Shape>& weights, const float4* shared,
                                               const float* gates) {
  // Chains of multiply-adds that do not wait for each other.
  constexpr int kChains = Shape::kColumns == 1 ? 4 : 2;
  float sum[Shape::kColumns][kChains] = {};
  const auto* const from = reinterpret_cast<const float4*>(gates);
  const auto add = [&](const float4& x, int column, const float4& w) {
    float (&s)[kChains] = sum[column];
    s[0] = fmaf(w.x, x.x, s[0]);
    s[1] = fmaf(w.y, x.y, s[1]);
    s[2 % kChains] = fmaf(w.z, x.z, s[2 % kChains]);
    s[3 % kChains] = fmaf(w.w, x.w, s[3 % kChains]);
  };
#pragma unroll
  for (int i = 0; i < Shape::kKeptWeights / 4; ++i) {
    const float4 x = from[i];
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
      const float* const w = weights[column] + 4 * i;
      add(x, column, {w[0], w[1], w[2], w[3]});
    }
  }
#pragma unroll
  for (int i = 0; i < Shape::kSharedWeights / 4; ++i) {
    const float4 x = from[Shape::kKeptWeights / 4 + i];
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
      add(x, column, shared[(i * Shape::kColumns + column) * Shape::kThreads]);
    }
  }
#pragma unroll
  for (int column = 0; column < Shape::kColumns; ++column) {
    sums[column] = sum[column][0] + sum[column][1];
    if constexpr (kChains == 4) {
      sums[column] += sum[column][2] + sum[column][3];
    }
  }
}

template <typename Cell, typename Shape>
__global__ __launch_bounds__(Shape::kThreads, 1) void backward_cluster_fma_kernel(
    const __grid_constant__ BackwardArguments a) {
  using Items = BackwardItems<Cell, float, Shape::kThreads>;
  constexpr int kThreads = Shape::kThreads;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kDepth = Shape::kDepth;
  constexpr int kParts = Shape::kParts;
  constexpr int kColumnThreads = kThreads / Shape::kSplits;

  const int thread = kept_thread_index();
  const RnnPlace place = backward_place(a);
  const int rows = place.rows;
  const auto* const w_hh = static_cast<const float*>(a.direction[place.direction].w_hh);

  uint64_t* const arrived = dynamic_shared<uint64_t>();
  float* const gates = reinterpret_cast<float*>(arrived + 2);  // [2, a.rows, kDepth]
  float* const parts = gates + 2 * a.rows * kDepth;            // [2, kParts, a.rows, kUnits]
  float4* const shared_weights = reinterpret_cast<float4*>(parts + 2 * kParts * a.rows * kUnits) + thread;
  const int buffer = kParts * a.rows * kUnits;
  const ScatterExchange<Shape::kBlocks> exchange(
      arrived, static_cast<uint32_t>(kParts * rows * kUnits * sizeof(float)), thread);

  const int unit = thread % kUnits;
  const int first_row = thread / kUnits;
  Items items(a, place, dynamic_shared<float>() + Shape::floats(a.rows), thread, place.first_unit + unit,
              first_row, Shape::kRowsOfTurn);

  const int split = thread / kColumnThreads;
  const int first_column = thread % kColumnThreads;
  BackwardFmaWeights<Shape> weights;
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int of_layer = first_column + column * kColumnThreads;
    const int first = split * Shape::kWeights;
    load_backward_weights<Shape, Shape::kKeptWeights>(weights[column], w_hh, place, a.hidden, first,
                                                      of_layer);
    if constexpr (Shape::kSharedWeights > 0) {
      float beyond[Shape::kSharedWeights];
      load_backward_weights<Shape, Shape::kSharedWeights>(beyond, w_hh, place, a.hidden,
                                                          first + Shape::kKeptWeights, of_layer);
#pragma unroll
      for (int i = 0; i < Shape::kSharedWeights / 4; ++i) {
        const float* const w = beyond + 4 * i;
        shared_weights[(i * kColumns + column) * kThreads] = {w[0], w[1], w[2], w[3]};
      }
    }
  }
  // Where the products of a column go: the block that has its unit, and there this block's part of the sum.
  PeerShared peer[kColumns];
  float* to[kColumns];
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const int of_layer = first_column + column * kColumnThreads;
    peer[column] = exchange.peer(of_layer / kUnits);
    to[column] = parts + (place.rank * Shape::kSplits + split) * a.rows * kUnits + of_layer % kUnits;
  }
  exchange.start();

  const bool finishes = first_row < rows;  // all lanes of a warp alike
  for (int step = 0;; ++step) {
    const bool last = step == a.steps;
    const int odd = step % 2;
    float* const own = gates + odd * a.rows * kDepth;
    typename Items::Gradients gradients;
    if (finishes) {
      for (int turn = 0; turn < items.turns(); ++turn) {
        const int row = items.row(turn);
        if (row >= rows) {
          // Nothing to finish, but the loads keep in step.
          if (!last && turn + 1 < items.turns()) {
            items.write(a, turn, a.steps - 1 - step, gradients);
          }
          continue;
        }
        if (last) {
          items.prepare_last(turn);
        } else {
          items.prepare(turn);
        }
        if (turn == 0) {
          exchange.wait(step);
        }
        float products = 0.0f;
        if (step == 0) {
          products = items.first(a, turn);
        } else {
          const float* const from = parts + odd * buffer + row * kUnits + unit;
#pragma unroll
          for (int i = 0; i < kParts; ++i) {
            products += from[i * a.rows * kUnits];
          }
        }
        if (last) {
          items.write_last(a, turn, products);
          continue;
        }
        gradients = items.gradients(turn, products);
#pragma unroll
        for (int gate = 0; gate < Cell::kGates; ++gate) {
          own[row * kDepth + gate * kUnits + unit] = gradients.hidden[gate];
        }
        if (turn + 1 < items.turns()) {
          items.write(a, turn, a.steps - 1 - step, gradients);
        }
      }
    }
    if (last) {
      break;
    }
    __syncthreads();
    const int next = (1 - odd) * buffer;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      float sums[kColumns];
      multiply_gates<Shape>(sums, weights, shared_weights, own + row * kDepth + split * Shape::kWeights);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        exchange.send(peer[column], to[column] + next + row * kUnits, sums[column], step + 1);
      }
    }
    if (finishes) {
      items.write(a, items.turns() - 1, a.steps - 1 - step, gradients);
    }
    exchange.sent();
  }
}

}  // namespace aten_ext::cuda
