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
#include "device/sync.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/items.cuh"
#include "ops/rnn/backward/scatter_exchange.cuh"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/cluster_exchange.cuh"
#include "ops/rnn/reduce.cuh"

namespace aten_ext::cuda {

// A thread's columns of its share of the block's gates: those in registers.
template <typename Shape>
using BackwardFmaWeights = float[Shape::kColumns][Shape::kKeptWeights];

// Weights `kFirst` to kFirst + kCount of a thread in one column of W_hh: four neighbouring rows of the
// block's gates (row i: of gate i / kUnits), then the four kTeam times further on. Zero where the unit or the
// column does not exist. The pointer is hidden from the compiler now and then: it would keep an address for
// each load.
template <typename Shape, int kFirst, int kCount>
__device__ __forceinline__ void load_backward_weights(float* to, const float*& w_hh, const RnnPlace& place,
                                                      int hidden, int first_row, int column) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const int row = first_row + (kFirst + i) * Shape::kTeam;
    const int unit = place.first_unit + row % Shape::kUnits;
    const float* const from =
        w_hh + (static_cast<int64_t>(row / Shape::kUnits) * hidden + unit) * hidden + column;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to[i + k] = unit + k < hidden && column < hidden ? from[static_cast<int64_t>(k) * hidden] : 0.0f;
    }
    if (i % 16 == 12) {
      asm volatile("" : "+l"(w_hh));
    }
  }
}

// The products of one row of gates' gradients with this thread's columns. `gates`: the thread's first four;
// `shared`: the thread's own of the weights that registers do not hold, [kSharedWeights / 4, kColumns,
// kThreads].
template <typename Shape>
__device__ __forceinline__ void multiply_gates(float (&sums)[Shape::kColumns],
                                               const BackwardFmaWeights<Shape>& weights, const float4* shared,
                                               const float* gates) {
  // Chains of multiply-adds that do not wait for each other.
  constexpr int kChains = Shape::kColumns <= 2 ? 2 : 1;
  float sum[Shape::kColumns][kChains] = {};
  const auto* const from = reinterpret_cast<const float4*>(gates);
  const auto add = [&](const float4& x, int column, const float4& w) {
    float (&s)[kChains] = sum[column];
    s[0] = fmaf(w.x, x.x, s[0]);
    s[kChains - 1] = fmaf(w.y, x.y, s[kChains - 1]);
    s[0] = fmaf(w.z, x.z, s[0]);
    s[kChains - 1] = fmaf(w.w, x.w, s[kChains - 1]);
  };
#pragma unroll
  for (int i = 0; i < Shape::kKeptWeights / 4; ++i) {
    const float4 x = from[i * Shape::kTeam];
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
      const float* const w = weights[column] + 4 * i;
      add(x, column, {w[0], w[1], w[2], w[3]});
    }
  }
#pragma unroll
  for (int i = 0; i < Shape::kSharedWeights / 4; ++i) {
    const float4 x = from[(Shape::kKeptWeights / 4 + i) * Shape::kTeam];
#pragma unroll
    for (int column = 0; column < Shape::kColumns; ++column) {
      add(x, column, shared[(i * Shape::kColumns + column) * Shape::kThreads]);
    }
  }
#pragma unroll
  for (int column = 0; column < Shape::kColumns; ++column) {
    sums[column] = kChains == 2 ? sum[column][0] + sum[column][kChains - 1] : sum[column][0];
  }
}

template <typename Cell, typename Shape>
__global__ __launch_bounds__(Shape::kThreads, 1) void backward_cluster_fma_kernel(
    const __grid_constant__ BackwardArguments a) {
  using Items = BackwardItems<Cell, float, float, Shape::kThreads, false>;
  constexpr int kThreads = Shape::kThreads;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kDepth = Shape::kDepth;
  constexpr int kParts = Shape::kParts;
  constexpr int kTeam = Shape::kTeam;
  constexpr int kOwn = kColumns / kTeam;  // columns whose sums a lane has in the end
  constexpr int kSplitWarps = kThreads / 32 / Shape::kSplits;

  launch_dependents();
  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int in_team = lane % kTeam;
  const RnnPlace place = backward_place(a);
  const int rows = place.rows;

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

  // The columns of a warp: kOwn times 32; of a thread kTeam neighbours of each.
  const int split = thread / 32 / kSplitWarps;
  const int warp_column = thread / 32 % kSplitWarps * 32 * kOwn;
  const int first_gate = split * (kDepth / Shape::kSplits) + 4 * in_team;
  BackwardFmaWeights<Shape> weights;
  const auto* w_hh = static_cast<const float*>(a.direction[place.direction].w_hh);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int column = warp_column + i / kTeam * 32 + (lane - in_team) + i % kTeam;
    load_backward_weights<Shape, 0, Shape::kKeptWeights>(weights[i], w_hh, place, a.hidden, first_gate,
                                                         column);
    if constexpr (Shape::kSharedWeights > 0) {
      float beyond[Shape::kSharedWeights];
      load_backward_weights<Shape, Shape::kKeptWeights, Shape::kSharedWeights>(beyond, w_hh, place, a.hidden,
                                                                               first_gate, column);
#pragma unroll
      for (int k = 0; k < Shape::kSharedWeights / 4; ++k) {
        const float* const w = beyond + 4 * k;
        shared_weights[(k * kColumns + i) * kThreads] = {w[0], w[1], w[2], w[3]};
      }
    }
  }
  // Where the sums of a lane's own columns go: the block that has the unit, and there this block's part.
  PeerShared peer[kOwn];
  float* to[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = warp_column + i * 32 + lane;
    peer[i] = exchange.peer(column / kUnits);
    to[i] = parts + (place.rank * Shape::kSplits + split) * a.rows * kUnits + column % kUnits;
  }
  exchange.start();

  const bool finishes = first_row < rows;  // all lanes of a warp alike
  for (int step = 0; step <= a.steps; ++step) {
    const int odd = step % 2;
    float* const own = gates + odd * a.rows * kDepth;
    if (finishes) {
      items.finish(
          a, step, [&] { exchange.wait(step); },
          [&](int row) {
            const float* const from = parts + odd * buffer + row * kUnits + unit;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < kParts; ++i) {
              sum += from[i * a.rows * kUnits];
            }
            return sum;
          },
          [&](int row, const typename Items::Gradients& gradients) {
            if (row < rows) {
#pragma unroll
              for (int gate = 0; gate < Cell::kGates; ++gate) {
                own[row * kDepth + gate * kUnits + unit] = gradients.hidden[gate];
              }
            }
          });
    }
    if (step == a.steps) {
      break;
    }
    __syncthreads();
    const int next = (1 - odd) * buffer;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      float sums[kColumns];
      multiply_gates<Shape>(sums, weights, shared_weights, own + row * kDepth + first_gate);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        float of_team[kTeam][1];
#pragma unroll
        for (int k = 0; k < kTeam; ++k) {
          of_team[k][0] = sums[i * kTeam + k];
        }
        reduce_over_team<kTeam>(of_team, lane);
        exchange.send(peer[i], to[i] + next + row * kUnits, of_team[0][0], step + 1);
      }
    }
    if (finishes) {
      items.write(a);
    }
    exchange.sent();
  }
}

}  // namespace aten_ext::cuda
