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

  uint32_t weights[kKept][kSteps][kRegisters];
  const auto* w_hh = static_cast<const Tensor*>(a.direction[place.direction].w_hh);
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int first = (warp * kSteps + s) * 16 + 4 * in_four;
      const Tensor* const from = w_hh + (static_cast<int64_t>(gate) * hidden + first) * hidden;
      const int unit = place.first_unit + group_of_four;
      if (gate < kKept) {
        uint32_t (&tile)[kRegisters] = weights[gate % kKept][s];
        load_backward_tile<Element>(tile, from, hidden - first, unit, hidden);
        // A few at a time: otherwise the loads of all would wait in registers of their own.
        if (s % 4 == 3) {
          asm volatile("" : "+l"(w_hh), "+r"(tile[0]), "+r"(tile[3]));
        }
      } else {
        uint32_t tile[kRegisters];
        load_backward_tile<Element>(tile, from, hidden - first, unit, hidden);
#pragma unroll
        for (int i = 0; i < kRegisters / 4; ++i) {
          memcpy(shared_weights + (((gate - kKept) * kSteps + s) * (kRegisters / 4) + i) * kGridThreads,
                 tile + 4 * i, sizeof(uint4));
        }
      }
    }
  }

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
