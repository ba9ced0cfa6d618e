// The backward recurrence of a layer where a block, or a thread-block cluster, has all units, on tensor
// cores: one launch for all steps, W_hh in registers.
//
// As in cluster_fma.cuh, a block multiplies the gradients of its own units' gates by their rows of W_hh, and
// sends what comes out to the blocks that have the columns' units. Here a warp has kTiles times 16 columns: A
// is 16 of them by the block's gates (W_hh transposed), B the gates' gradients of eight rows of the batch, in
// the operand's type. Sums, what is carried and what is exchanged are fp32.
//
// Lane t of four takes 16 neighbouring bytes of each 64 of B, and of A the same: one 16-byte load is the
// operand of two mma, as in the forward (ops/rnn/cluster_mma.cuh).
//
// FLOPs of a step: 2 * kGates * H^2 a row. The limit is latency: docs/kernels/rnn.md has the budget of a
// step.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/items.cuh"
#include "ops/rnn/backward/scatter_exchange.cuh"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/cluster_exchange.cuh"
#include "ops/rnn/operands.cuh"

namespace aten_ext::cuda {

// A lane's part of W_hh: columns g and g + 8 of each tile, 16 bytes of gates for each pair of mma.
template <typename Shape>
struct BackwardMmaWeights {
  uint4 low[Shape::kTiles][Shape::kPairs];
  uint4 high[Shape::kTiles][Shape::kPairs];
};

// Gates from `first` (a row of the block's, of gate first / kUnits) of one column of W_hh. Zero where the
// unit or the column does not exist.
template <typename Element, typename Shape>
__device__ __forceinline__ uint4 load_backward_operands(const typename RnnMma<Element>::Tensor* w_hh,
                                                        const RnnPlace& place, int hidden, int first,
                                                        int column) {
  using Operand = typename RnnMma<Element>::Operand;
  constexpr int kVector = 16 / sizeof(Operand);
  Operand values[kVector];
  const int unit = place.first_unit + first % Shape::kUnits;
  const auto* const from =
      w_hh + (static_cast<int64_t>(first / Shape::kUnits) * hidden + unit) * hidden + column;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const bool exists = unit + i < hidden && column < hidden;
    values[i] = RnnMma<Element>::to_operand(exists ? to_op(from[static_cast<int64_t>(i) * hidden]) : 0.0f);
  }
  uint4 bits;
  memcpy(&bits, values, sizeof(bits));
  return bits;
}

// The same of columns and addresses in pairs, in 16 bits: by loads of two columns, all of them under way at
// once, whose rows and columns then change places among the lanes.
template <typename Element, typename Shape>
__device__ __forceinline__ void load_pairs_of_columns(BackwardMmaWeights<Shape>& weights, const Element* w_hh,
                                                      const RnnPlace& place, int hidden, int first_gate,
                                                      int first_column, int lane) {
  // Lane t of four gets gates 8 t + {0..7} of 32, by twos: so the rows of four transpositions are those.
  const int row = lane / 8 * 8 + lane / 4 % 2;
  const int column = first_column + 2 * (lane % 4);
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int pair = 0; pair < Shape::kPairs; ++pair) {
      const int gate = first_gate + pair * Shape::kPairColumns;
      const int unit = place.first_unit + gate % Shape::kUnits + row;
      const Element* const from =
          w_hh + (static_cast<int64_t>(gate / Shape::kUnits) * hidden + unit) * hidden + column + tile * 16;
      const auto load = [&](int below, int right) {
        const bool exists = unit + below < hidden && column + tile * 16 + right < hidden;
        return exists
                   ? *reinterpret_cast<const uint32_t*>(from + static_cast<int64_t>(below) * hidden + right)
                   : 0u;
      };
      weights.low[tile][pair] = {load(0, 0), load(2, 0), load(4, 0), load(6, 0)};
      weights.high[tile][pair] = {load(0, 8), load(2, 8), load(4, 8), load(6, 8)};
    }
  }
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int pair = 0; pair < Shape::kPairs; ++pair) {
      for (uint4* const of : {&weights.low[tile][pair], &weights.high[tile][pair]}) {
        *of = {transpose_8x8(of->x), transpose_8x8(of->y), transpose_8x8(of->z), transpose_8x8(of->w)};
      }
    }
  }
}

// Once. `first_gate`, of the block's, and `first_column` are the warp's.
template <typename Element, typename Shape>
__device__ __forceinline__ void load_backward_weights(BackwardMmaWeights<Shape>& weights,
                                                      const typename RnnMma<Element>::Tensor* w_hh,
                                                      const RnnPlace& place, int hidden, int first_gate,
                                                      int first_column, int lane) {
  if constexpr (sizeof(Element) == 2) {
    if (hidden % 2 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(uint32_t) == 0) {
      load_pairs_of_columns<Element, Shape>(weights, w_hh, place, hidden, first_gate, first_column, lane);
      return;
    }
  }
  constexpr int kVector = 16 / sizeof(typename RnnMma<Element>::Operand);
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
#pragma unroll
    for (int pair = 0; pair < Shape::kPairs; ++pair) {
      const int gate = first_gate + lane % 4 * kVector + pair * Shape::kPairColumns;
      const int column = first_column + tile * 16 + lane / 4;
      uint4& low = weights.low[tile][pair];
      uint4& high = weights.high[tile][pair];
      low = load_backward_operands<Element, Shape>(w_hh, place, hidden, gate, column);
      high = load_backward_operands<Element, Shape>(w_hh, place, hidden, gate, column + 8);
      // A few at a time: otherwise the loads of all would wait in registers of their own for the conversion.
      if ((tile * Shape::kPairs + pair) % 3 == 2) {
        asm volatile("" : "+l"(w_hh), "+r"(low.x), "+r"(low.w), "+r"(high.x), "+r"(high.w));
      }
    }
  }
}

// Within a unit's eight rows, where the pair 2 t, 2 t + 1 lies: turned with the unit, so that 32 units of one
// row are read with two conflicts, not eight, while what a warp sends stays side by side.
__device__ __forceinline__ int backward_pair_place(int unit, int t) {
  return 2 * (t ^ (unit >> 2 & 3));
}

template <typename Cell, typename Element, typename Coefficient, typename Shape>
__global__ __launch_bounds__(Shape::kThreads, 1) void backward_cluster_mma_kernel(
    const __grid_constant__ BackwardArguments a) {
  using Mma = RnnMma<Element>;
  using Tensor = typename Mma::Tensor;
  using Operand = typename Mma::Operand;
  using Items = BackwardItems<Cell, Tensor, Coefficient, Shape::kThreads, false>;
  static_assert(sizeof(Operand) == Shape::kOperandBytes);
  constexpr int kUnits = Shape::kUnits;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kPairs = Shape::kPairs;
  constexpr int kStride = Shape::kStride;
  constexpr int kParts = Shape::kParts;
  constexpr int kVector = 16 / sizeof(Operand);
  constexpr int kTileWarps = Shape::kWarps / Shape::kSplits;
  // Chains of mma that do not wait for each other: one for each tile, or twice that.
  constexpr int kChains = kTiles <= 2 && kPairs > 1 ? 2 : 1;

  launch_dependents();
  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const RnnPlace place = backward_place(a);
  const int rows = place.rows;
  const int eights = (rows + 7) / 8;
  const int padded = Shape::padded(a.rows);

  uint64_t* const arrived = dynamic_shared<uint64_t>();
  Operand* const gates = reinterpret_cast<Operand*>(arrived + 2);  // [2, padded, kStride]
  float* const parts =                                             // [2, kParts, padded / 8, kUnits, 8]
      reinterpret_cast<float*>(gates + 2 * padded * kStride);
  const int part = padded * kUnits;
  const int buffer = kParts * part;
  // Pairs of rows travel, those that exist.
  const ScatterExchange<Shape::kBlocks> exchange(
      arrived, static_cast<uint32_t>(kParts * ((rows + 1) / 2 * 2) * kUnits * sizeof(float)), thread);

  const int unit = thread % kUnits;
  const int first_row = thread / kUnits;
  Items items(a, place, dynamic_shared<float>() + Shape::floats(a.rows), thread, place.first_unit + unit,
              first_row, Shape::kRowsOfTurn);

  const int split = warp / kTileWarps;
  const int first_column = warp % kTileWarps * kTiles * 16;
  const int first_of_warp = split * kPairs * Shape::kPairColumns;
  const int first_gate = first_of_warp + in_four * kVector;
  BackwardMmaWeights<Shape> weights;
  load_backward_weights<Element, Shape>(weights,
                                        static_cast<const Tensor*>(a.direction[place.direction].w_hh), place,
                                        a.hidden, first_of_warp, first_column, lane);
  // Zero where no unit ever writes and rows that do not exist: the products of those rows go nowhere, but
  // what shared memory held may be NaN, and racing tools want it written.
  for (int i = thread; i < 2 * padded * kStride; i += Shape::kThreads) {
    gates[i] = Operand{};
  }
  PeerShared peer[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    peer[tile] = exchange.peer((first_column + tile * 16) / kUnits);
  }
  float* const to = parts + (place.rank * Shape::kSplits + split) * part;
  exchange.start();

  const bool finishes = first_row < rows;  // all lanes of a warp alike
  for (int step = 0; step <= a.steps; ++step) {
    const int odd = step % 2;
    Operand* const own = gates + odd * padded * kStride;
    if (finishes) {
      items.finish(
          a, step, [&] { exchange.wait(step); },
          [&](int row) {
            const float* const from = parts + odd * buffer + row / 8 * 8 * kUnits + unit * 8 +
                                      backward_pair_place(unit, row % 8 / 2) + row % 2;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < kParts; ++i) {
              sum += from[i * part];
            }
            return sum;
          },
          [&](int row, const typename Items::Gradients& gradients) {
            if (row < rows) {
#pragma unroll
              for (int gate = 0; gate < Cell::kGates; ++gate) {
                own[row * kStride + gate * kUnits + unit] = Mma::to_operand(gradients.hidden[gate]);
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
    for (int eight = 0; eight < eights; ++eight) {
      const Operand* const from = own + (8 * eight + group_of_four) * kStride + first_gate;
      float sums[kChains][kTiles][4] = {};
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + pair * Shape::kPairColumns);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4& l = weights.low[tile][pair];
          const uint4& u = weights.high[tile][pair];
          Mma::multiply_add(sums[0][tile], {l.x, u.x, l.y, u.y}, {x.x, x.y});
          Mma::multiply_add(sums[kChains - 1][tile], {l.z, u.z, l.w, u.w}, {x.z, x.w});
        }
      }
      if (8 * eight + 2 * in_four < rows) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int column = (first_column + tile * 16) % kUnits + group_of_four + 8 * half;
            float2 pair{sums[0][tile][2 * half], sums[0][tile][2 * half + 1]};
            if constexpr (kChains == 2) {
              pair.x += sums[1][tile][2 * half];
              pair.y += sums[1][tile][2 * half + 1];
            }
            exchange.send(peer[tile],
                          to + next + eight * 8 * kUnits + column * 8 + backward_pair_place(column, in_four),
                          pair, step + 1);
          }
        }
      }
    }
    if (finishes) {
      items.write(a);
    }
    exchange.sent();
  }
}

}  // namespace aten_ext::cuda
