// The backward recurrence of a layer over the whole GPU on tensor cores: one launch for all steps, W_hh in
// registers as the A operand. How the warps of a block meet: ops/rnn/grid.cuh.
//
// A block has 16 units. Warp w has kSteps times 16 units of the layer, with the gates of each: A is W_hh
// transposed, 16 of the block's columns by 16 rows of a gate, B the gradients of those gates of eight rows of
// the batch. They come from global memory in words with the number of the step, as the states of the forward
// do (ops/rnn/grid_mma.cuh), a tile of 16 units with all gates from each block: grid_words.cuh.
//
// Registers: 128 of weights at most, so that there is room for the words of the next portion. The gates
// beyond are read from shared memory in each step. Timings: docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/grid_fma.cuh"
#include "ops/rnn/backward/grid_words.cuh"
#include "ops/rnn/backward/items.cuh"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/grid_mma.cuh"

namespace aten_ext::cuda {

// A tile of A: rows g and g + 8 are the block's units, columns 4 t + {0..3} are rows of W_hh from `row`, of
// which `rows` exist. Zero elsewhere.
template <typename Element>
__device__ __forceinline__ void load_backward_tile(uint32_t (&tile)[GridMma<Element>::kRegisters],
                                                   const typename RnnMma<Element>::Tensor* from, int rows,
                                                   int unit, int hidden) {
  float low[4];
  float high[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto* const row = from + static_cast<int64_t>(i) * hidden + unit;
    low[i] = i < rows && unit < hidden ? to_op(row[0]) : 0.0f;
    high[i] = i < rows && unit + 8 < hidden ? to_op(row[8]) : 0.0f;
  }
  GridMma<Element>::set(tile, low, high);
}

// The same of columns and addresses in pairs, in 16 bits, before rows and columns change places: two columns
// by each load. `from`: the first of 16 rows of W_hh, of which `rows` exist, `unit`: the block's first.
template <typename Element>
__device__ __forceinline__ void load_pairs_of_columns(uint32_t (&tile)[4], const Element* from, int rows,
                                                      int unit, int hidden, int lane) {
  // Lane t of four gets rows 4 t + {0..3}, by twos: so the rows of two transpositions are those.
  const int row = lane / 8 * 4 + lane / 4 % 2;
  const int column = unit + 2 * (lane % 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int below = i / 2 * 2;
    const int right = i % 2 * 8;
    const bool exists = row + below < rows && column + right < hidden;
    tile[i] = exists ? *reinterpret_cast<const uint32_t*>(from + static_cast<int64_t>(row + below) * hidden +
                                                          column + right)
                     : 0u;
  }
}
__device__ __forceinline__ void transpose_tile(uint32_t (&tile)[4]) {
#pragma unroll
  for (uint32_t& pair : tile) {
    pair = transpose_8x8(pair);
  }
}

template <typename Shape>
using KeptWeights = uint32_t[Shape::kKeptGates][Shape::kSteps][Shape::kRegisters];

// A tile of a gate that registers have no room for.
template <typename Shape>
__device__ __forceinline__ void share_tile(uint4* shared_weights, int gate, int step,
                                           const uint32_t (&tile)[Shape::kRegisters]) {
  constexpr int kVectors = Shape::kRegisters / 4;
  const int first = ((gate - Shape::kKeptGates) * Shape::kSteps + step) * kVectors;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    memcpy(shared_weights + (first + i) * kGridThreads, tile + 4 * i, sizeof(uint4));
  }
}

// Once, of all gates: the warp's kSteps tiles from `first_row` on. `shared_weights` are this thread's.
template <typename Element, typename Shape>
__device__ __forceinline__ void load_backward_weights(KeptWeights<Shape>& weights, uint4* shared_weights,
                                                      const typename RnnMma<Element>::Tensor* w_hh,
                                                      int first_row, int first_unit, int hidden, int lane) {
  constexpr int kKept = Shape::kKeptGates;
  using Tile = uint32_t[Shape::kRegisters];
  if constexpr (sizeof(Element) == 2) {
    if (hidden % 2 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(uint32_t) == 0) {
      const auto load = [&](Tile& tile, int gate, int s) {
        const int row = first_row + 16 * s;
        load_pairs_of_columns(tile, w_hh + (static_cast<int64_t>(gate) * hidden + row) * hidden, hidden - row,
                              first_unit, hidden, lane);
      };
      // All loads are under way before the first changes places.
#pragma unroll
      for (int i = 0; i < kKept * Shape::kSteps; ++i) {
        load(weights[i / Shape::kSteps][i % Shape::kSteps], i / Shape::kSteps, i % Shape::kSteps);
      }
#pragma unroll
      for (int i = 0; i < kKept * Shape::kSteps; ++i) {
        transpose_tile(weights[i / Shape::kSteps][i % Shape::kSteps]);
      }
#pragma unroll
      for (int gate = kKept; gate < Shape::kGates; ++gate) {
#pragma unroll
        for (int s = 0; s < Shape::kSteps; ++s) {
          Tile tile;
          load(tile, gate, s);
          transpose_tile(tile);
          share_tile<Shape>(shared_weights, gate, s, tile);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
      const int first = first_row + 16 * s + 4 * (lane % 4);
      const auto* const from = w_hh + (static_cast<int64_t>(gate) * hidden + first) * hidden;
      const int unit = first_unit + lane / 4;
      if (gate < kKept) {
        Tile& tile = weights[gate % kKept][s];
        load_backward_tile<Element>(tile, from, hidden - first, unit, hidden);
        // A few at a time: otherwise the loads of all would wait in registers of their own.
        if (s % 4 == 3) {
          asm volatile("" : "+l"(w_hh), "+r"(tile[0]), "+r"(tile[3]));
        }
      } else {
        Tile tile;
        load_backward_tile<Element>(tile, from, hidden - first, unit, hidden);
        share_tile<Shape>(shared_weights, gate, s, tile);
      }
    }
  }
}

template <typename Cell, typename Element, typename Coefficient, typename Shape>
__global__ __launch_bounds__(kGridThreads,
                             1) void backward_grid_mma_kernel(const __grid_constant__ BackwardArguments a) {
  using Mma = GridMma<Element>;
  using Tensor = typename RnnMma<Element>::Tensor;
  using Items = BackwardItems<Cell, Tensor, Coefficient, kGridThreads, true>;
  static_assert(Mma::kRegisters == Shape::kRegisters);
  constexpr int kGates = Cell::kGates;
  constexpr int kSteps = Shape::kSteps;
  constexpr int kRegisters = Mma::kRegisters;
  constexpr int kKept = Shape::kKeptGates;
  constexpr int kChains = 2;
  using Words = GradientWords<Mma, Shape>;
  constexpr int kOfTile = Shape::kVectors * kGridMmaWords;  // words of 16 units of eight rows
  constexpr int kOfEight = kGridWarps * kSteps * kOfTile;
  // A portion has the registers of the same portion of the next eight rows.
  constexpr int kTiles = Words::kTiles;
  constexpr int kVectors = Words::kVectors;
  constexpr int kProducts = kTiles * Words::kGates;  // of a portion
  constexpr int kPortions = Words::kPortions;
  constexpr int kOfGates = kSteps / kTiles;  // portions of the same gates
  constexpr int kUnderWay = Words::kUnderWay;
  static_assert(kPortions * kProducts == kSteps * kGates && kPortions % kUnderWay == 0);
  using Poll = GridPoll<typename Words::Loads, kTiles * kVectors, kVectors, kOfTile, kGridMmaWords>;

  launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const RnnPlace place = backward_place(a);
  const int rows = place.rows;
  const int hidden = a.hidden;
  const int part = grid_mma_padded(a.rows) * Shape::kStride;
  uint4* const shared_weights = dynamic_shared<uint4>() + thread;
  float* const products = dynamic_shared<float>() + Shape::weights();  // [2, kGridWarps, padded, kStride]

  KeptWeights<Shape> weights;
  load_backward_weights<Element, Shape>(weights, shared_weights,
                                        static_cast<const Tensor*>(a.direction[place.direction].w_hh),
                                        warp * kSteps * 16, place.first_unit, hidden, lane);

  const int item_row = warp * 2 + lane / kGridMmaUnits;
  const int item_unit = lane % kGridMmaUnits;
  Items items(a, place, dynamic_shared<float>() + Shape::floats(a.rows), thread, place.first_unit + item_unit,
              item_row, Shape::kRowsOfTurn);
  const int finishing = min(kGridWarps, (rows + 1) / 2);  // warps
  const bool finishes = warp < finishing;
  const int tiles = (hidden + 15) / 16 - warp * kSteps;  // of this warp on that exist; may be negative
  const bool has_columns = tiles > 0;
  const BackwardWords words(a, Shape::words(a.rows));

  for (int step = 0; step <= a.steps; ++step) {
    float* const parts = products + step % 2 * kGridWarps * part;
    if (step > 0) {
      before_products(step, finishes);
      // The words of portions of eight rows, kUnderWay at a time. Those that follow are loaded while these
      // are multiplied.
      typename Poll::Vector vectors[kUnderWay][kTiles * kVectors];
      const uint64_t* from = words.of(step) + warp * kSteps * kOfTile + 2 * lane;
      const auto poll_of = [&](int row0, const uint64_t* eight, int portion) {
        const int first = portion % kOfGates * kTiles;
        const bool row_exists = row0 + group_of_four < rows;
        uint32_t missing = 0;
#pragma unroll
        for (int v = 0; v < kTiles * kVectors; ++v) {
          missing |= row_exists && first + v / kVectors < tiles ? 1u << v : 0u;
        }
        return Poll{eight + first * kOfTile + portion / kOfGates * kVectors * kGridMmaWords, missing,
                    Mma::tag(step)};
      };
      const auto issue = [&](int row0, const uint64_t* eight, int portion) {
        typename Poll::Vector(&to)[kTiles * kVectors] = vectors[portion % kUnderWay];
#pragma unroll
        for (int v = 0; v < kTiles * kVectors; ++v) {
          to[v] = {};  // of rows and columns that do not exist
        }
        poll_of(row0, eight, portion).issue(to);
      };
#pragma unroll
      for (int i = 0; i < kUnderWay; ++i) {
        issue(0, from, i);
      }
#pragma unroll 1
      for (int row0 = 0; row0 < rows; row0 += 8, from += kOfEight) {
        float sums[kChains][4] = {};
#pragma unroll
        for (int portion = 0; portion < kPortions; ++portion) {
          const int slot = portion % kUnderWay;
          poll_of(row0, from, portion).complete(vectors[slot]);
#pragma unroll
          for (int i = 0; i < kProducts; ++i) {
            const int s = portion % kOfGates * kTiles + i / Words::kGates;
            const int gate = portion / kOfGates * Words::kGates + i % Words::kGates;
            float (&sum)[4] = sums[(portion * kProducts + i) % kChains];
            const typename Mma::Operand b =
                Words::operand(vectors[slot] + i / Words::kGates * kVectors, gate);
            if (gate < kKept) {
              Mma::multiply_add(sum, weights[gate % kKept][s], b);
            } else {
              uint32_t tile[kRegisters];
#pragma unroll
              for (int k = 0; k < kRegisters / 4; ++k) {
                memcpy(tile + 4 * k,
                       shared_weights + (((gate - kKept) * kSteps + s) * (kRegisters / 4) + k) * kGridThreads,
                       sizeof(uint4));
              }
              Mma::multiply_add(sum, tile, b);
            }
          }
          // Behind the products, so that the words that come need no registers beside those that go.
          if (portion + kUnderWay < kPortions) {
            issue(row0, from, portion + kUnderWay);
          } else if (row0 + 8 < rows) {
            issue(row0 + 8, from + kOfEight, portion + kUnderWay - kPortions);
          }
        }
        float* const to = parts + warp * part + (row0 + 2 * in_four) * Shape::kStride + group_of_four;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          to[i % 2 * Shape::kStride + i / 2 * 8] = sums[0][i] + sums[1][i];
        }
      }
    }
    if (!(step == 0 ? finishes : meet(step, finishes, has_columns))) {
      continue;
    }
    items.finish(
        a, step, [] {},
        [&](int row) {
          const float* const from = parts + row * Shape::kStride + item_unit;
          float sum = 0.0f;
#pragma unroll
          for (int i = 0; i < kGridWarps; ++i) {
            sum += from[i * part];
          }
          return sum;
        },
        [&](int row, const typename Items::Gradients& gradients) {
          uint64_t* const tile =
              words.of(step + 1) + static_cast<int64_t>(row / 8) * kOfEight + place.rank * kOfTile;
          Words::send(tile, gradients.hidden, item_unit, row % 8, row < rows, Mma::tag(step + 1));
        });
    if (step < a.steps) {
      products_read(step, a.steps + 1, finishing);
      items.write(a);
    }
  }
}

}  // namespace aten_ext::cuda
