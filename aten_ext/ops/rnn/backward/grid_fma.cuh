// The backward recurrence of a layer over the whole GPU in fp32, with plain fused multiply-adds: one launch
// for all steps, W_hh in registers. H up to 1024. How the warps of a block meet: ops/rnn/grid.cuh.
//
// Every block needs the gradients of all units' gates, and has the columns of W_hh of its own eight units.
// They go through global memory in words that carry the number of their step (ops/rnn/grid_exchange.cuh).
// Warp w has of each gate the rows [128 w, 128 w + 128), of which lane l has 128 w + 2 l + {0, 1} and the
// ones 64 further on. A step, row by row of the batch: two pairs of words a gate, 4 * kGates * 8
// multiply-adds, sums over the lanes, and partial sums to shared memory. Handing on parts of sums instead, as
// in a cluster, would take as many words from each block as there are units in the layer, and a block would
// write far more.
#pragma once

#include <cuda_runtime.h>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/backward/arguments.cuh"
#include "ops/rnn/backward/items.cuh"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/grid.cuh"
#include "ops/rnn/reduce.cuh"

namespace aten_ext::cuda {

// Where the words of this block's group are: two buffers, used in turn.
struct BackwardWords {
  uint64_t* first;  // of the group, buffer 0
  int64_t buffer;   // from one of the two buffers to the other

  // words: of a group in one of the buffers.
  __device__ __forceinline__ BackwardWords(const BackwardArguments& a, int64_t words)
      : first(a.words + blockIdx.x / a.blocks * words), buffer(gridDim.x / a.blocks * words) {}

  __device__ __forceinline__ uint64_t* of(int step) const {
    return first + step % 2 * buffer;
  }
};

template <typename Cell>
__global__ __launch_bounds__(kGridThreads,
                             1) void backward_grid_fma_kernel(const __grid_constant__ BackwardArguments a) {
  using Shape = BackwardGridFmaShape<Cell>;
  using Items = BackwardItems<Cell, float, float, kGridThreads, true>;
  constexpr int kUnits = kBackwardGridFmaUnits;
  constexpr int kGates = Cell::kGates;
  constexpr int kLanes = 32 / kUnits;  // that have the same sum in the end

  launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const RnnPlace place = backward_place(a);
  const int rows = place.rows;
  const int hidden = a.hidden;
  float* const products = dynamic_shared<float>();  // [2, kGridWarps, a.rows, kUnits]

  const int column[2] = {warp * 128 + 2 * lane, warp * 128 + 2 * lane + 64};
  float weights[kUnits][kGates][4];
  const auto* const w_hh = static_cast<const float*>(a.direction[place.direction].w_hh);
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int c = column[i / 2] + i % 2;
      const float* const from = w_hh + (static_cast<int64_t>(gate) * hidden + c) * hidden + place.first_unit;
#pragma unroll
      for (int unit = 0; unit < kUnits; ++unit) {
        weights[unit][gate][i] = c < hidden && place.first_unit + unit < hidden ? from[unit] : 0.0f;
      }
    }
  }

  const int item_row = warp * (32 / kUnits) + lane / kUnits;
  Items items(a, place, products + Shape::floats(a.rows), thread, place.first_unit + lane % kUnits, item_row,
              Shape::kRowsOfTurn);
  const int finishing = min(kGridWarps, (rows + 32 / kUnits - 1) / (32 / kUnits));  // warps
  const bool finishes = warp < finishing;
  const bool has_columns = warp * 128 < hidden;
  const BackwardWords words(a, backward_grid_fma_words<Cell>(a.rows));

  for (int step = 0; step <= a.steps; ++step) {
    float* const parts = products + step % 2 * kGridWarps * a.rows * kUnits;
    if (step > 0) {
      before_products(step, finishes);
      const uint64_t* const from = words.of(step) + column[0];
      using Poll = GridPoll<PairOfWords<32>, 2 * kGates, 2, kGridFmaColumns, 64>;
      uint32_t missing = 0;
#pragma unroll
      for (int i = 0; i < 2 * kGates; ++i) {
        missing |= column[i % 2] < hidden ? 1u << i : 0u;
      }
      WordPair pairs[2 * kGates] = {};
      Poll{from, missing, 0}.issue(pairs);
#pragma unroll 1
      for (int row = 0; row < rows; ++row) {
        Poll poll{from + static_cast<int64_t>(row) * kGates * kGridFmaColumns, missing,
                  static_cast<uint32_t>(step)};
        poll.complete(pairs);
        float x[kGates][4];
#pragma unroll
        for (int i = 0; i < 2 * kGates; ++i) {
          x[i / 2][i % 2 * 2] = __uint_as_float(static_cast<uint32_t>(pairs[i].first));
          x[i / 2][i % 2 * 2 + 1] = __uint_as_float(static_cast<uint32_t>(pairs[i].second));
        }
        if (row + 1 < rows) {
          Poll{from + static_cast<int64_t>(row + 1) * kGates * kGridFmaColumns, missing, 0}.issue(pairs);
        }
        float sums[kUnits][1];
#pragma unroll
        for (int unit = 0; unit < kUnits; ++unit) {
          sums[unit][0] = 0.0f;
#pragma unroll
          for (int i = 0; i < 4 * kGates; ++i) {
            sums[unit][0] = fmaf(weights[unit][i / 4][i % 4], x[i / 4][i % 4], sums[unit][0]);
          }
        }
        reduce_over_team<32>(sums, lane);
        if (lane % kLanes == 0) {
          parts[(warp * a.rows + row) * kUnits + lane / kLanes] = sums[0][0];
        }
      }
    }
    if (!(step == 0 ? finishes : meet(step, finishes, has_columns))) {
      continue;
    }
    items.finish(
        a, step, [] {},
        [&](int row) {
          float sum = 0.0f;
#pragma unroll
          for (int i = 0; i < kGridWarps; ++i) {
            sum += parts[(i * a.rows + row) * kUnits + lane % kUnits];
          }
          return sum;
        },
        [&](int row, const typename Items::Gradients& gradients) {
          if (row < rows) {
            uint64_t* const to = words.of(step + 1) + static_cast<int64_t>(row) * kGates * kGridFmaColumns +
                                 place.first_unit + lane % kUnits;
#pragma unroll
            for (int gate = 0; gate < kGates; ++gate) {
              store_word(to + gate * kGridFmaColumns,
                         static_cast<uint64_t>(step + 1) << 32 | __float_as_uint(gradients.hidden[gate]));
            }
          }
        });
    if (step < a.steps) {
      products_read(step, a.steps + 1, finishing);
      items.write(a);
    }
  }
}

}  // namespace aten_ext::cuda
