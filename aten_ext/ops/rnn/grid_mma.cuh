// The recurrence of a layer over the whole GPU on tensor cores: one launch for all steps, W_hh in registers
// as the A operand. See grid.cuh for how the blocks share the state.
//
// A block has 16 hidden units: for each gate a tile of 16 rows of W_hh. Warp w has kSteps times 16 columns of
// them, B is the state of eight rows of the batch. The order of columns within a product is free as long as A
// and B agree: of each 16, lane t of four has columns 4 t + {0..3}, which makes them two words of the state,
// one load. The units of one block are 16 such columns, so a load of a warp (512 bytes, eight rows) is what
// one other block has published.
//
// Element: __half, __nv_bfloat16 (m16n8k16), or Tf32 (m16n8k8, twice as many: fp32 tensors, operands rounded
// to 10 bits of mantissa, accumulated in fp32; only where PyTorch allows cuDNN that). A word is two units and
// the number of the step: 2 * 16 + 32 bits, or in TF32 2 * 19 + 26. In 16 bits a state from -1 to 1 has a bit
// to spare, and two units are a word of 32 bits.
//
// Registers: a GRU's 96 of weights (16 bits, H up to 1024; TF32 up to 512) and an LSTM's 128 leave room for
// the words of the next eight rows. 192 (a GRU in TF32, and in 16 bits beyond) do not: a few dozen values,
// read once a step, are in local memory. An LSTM would need 256 there: it keeps the steps beyond
// kRegisterSteps in shared memory, and reads them again for each tile. Timings, and both tiles of TF32 at
// once: docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/bounded_words.cuh"
#include "ops/rnn/grid.cuh"
#include "ops/rnn/grid_element.cuh"
#include "ops/rnn/operands.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// What depends on the element too. `bounded`: states are from -1 to 1 or NaN, and their words in 16 bits are
// half as large (bounded_words.cuh): a vector has two steps of 16 columns.
template <typename Element, typename Shape, bool bounded = false>
struct GridMmaTraits {
  using Mma = GridMma<Element>;
  using Tensor = typename RnnMma<Element>::Tensor;
  static constexpr bool kBare = bounded && sizeof(Tensor) == 2;
  static constexpr int kVectorSteps = kBare ? 2 : 1;
  static constexpr int kRowVectors = Shape::kSteps / kVectorSteps;  // of a lane's words, of eight rows
  static constexpr int kSteps = Shape::kSteps;
  static constexpr int kTiles = Shape::kTiles;
  static constexpr int kVectors = Mma::kRegisters / 4;  // of 16 bytes, of a step
  static constexpr int kRegisterSteps = kSteps - Shape::kSharedVectors / kVectors;
  // Of weights and words. Beyond 160 there is no room for the words of the next eight rows, nor for more
  // products that do not wait for one another.
  static constexpr bool kFewRegisters =
      Shape::kGates * kRegisterSteps * Mma::kRegisters + 4 * kTiles * kSteps <= 160;
  static constexpr int kChains = kFewRegisters ? 2 : 1;
  static constexpr int kOfEight = kGridWarps * kRowVectors * kGridMmaWords;  // 64-bit words of eight rows
  using Loads = std::conditional_t<kBare, FourBoundedWords, PairOfWords<Mma::kTagBits>>;
  using Poll = GridPoll<Loads, kTiles * kRowVectors, kRowVectors, kOfEight, kGridMmaWords>;
  using Weights = uint32_t[Shape::kGates][kRegisterSteps][Mma::kRegisters];
};

// This thread's vector of a gate and step in shared memory; `shared` is its first.
template <typename Element, typename Shape>
__device__ __forceinline__ constexpr int shared_weight(int gate, int step, int vector) {
  using Traits = GridMmaTraits<Element, Shape>;
  return (gate * Shape::kSharedVectors + (step - Traits::kRegisterSteps) * Traits::kVectors + vector) *
         kGridThreads;
}

template <typename Tensor>
struct alignas(4 * sizeof(Tensor)) FourColumns {
  Tensor value[4];
};

// Four columns of a row, zero beyond the last.
template <typename Tensor>
__device__ __forceinline__ void load_each_of_four(float (&to)[4], const Tensor* row, int column, int hidden) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    to[i] = column + i < hidden ? to_op(row[column + i]) : 0.0f;
  }
}

// A tile of A: four columns of two rows, zero beyond the last. Each by its own load, or four by one.
template <typename Element>
__device__ __forceinline__ void load_each_of_tile(uint32_t (&tile)[GridMma<Element>::kRegisters],
                                                  const typename RnnMma<Element>::Tensor* const (&row)[2],
                                                  int column, int hidden) {
  float low[4];
  float high[4];
  load_each_of_four(low, row[0], column, hidden);
  load_each_of_four(high, row[1], column, hidden);
  GridMma<Element>::set(tile, low, high);
}
template <typename Element>
__device__ __forceinline__ void load_tile(uint32_t (&tile)[GridMma<Element>::kRegisters],
                                          const typename RnnMma<Element>::Tensor* const (&row)[2], int column,
                                          int hidden) {
  using Four = FourColumns<typename RnnMma<Element>::Tensor>;
  Four low{};
  Four high{};
  if (column < hidden) {
    low = *reinterpret_cast<const Four*>(row[0] + column);
    high = *reinterpret_cast<const Four*>(row[1] + column);
  }
  if constexpr (sizeof(Four) == sizeof(uint2)) {  // as they are
    uint2 of_low;
    uint2 of_high;
    memcpy(&of_low, &low, sizeof(of_low));
    memcpy(&of_high, &high, sizeof(of_high));
    tile[0] = of_low.x;
    tile[1] = of_high.x;
    tile[2] = of_low.y;
    tile[3] = of_high.y;
  } else {
    float values[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[0][i] = to_op(low.value[i]);
      values[1][i] = to_op(high.value[i]);
    }
    GridMma<Element>::set(tile, values[0], values[1]);
  }
}

// W_hh of units g and g + 8 of the block's, columns from `first_column`, once.
template <typename Element, typename Shape>
__device__ __forceinline__ void load_weights(typename GridMmaTraits<Element, Shape>::Weights& weights,
                                             uint4* shared, const typename RnnMma<Element>::Tensor* w_hh,
                                             int first_unit, int first_column, int hidden) {
  using Traits = GridMmaTraits<Element, Shape>;
  using Tensor = typename RnnMma<Element>::Tensor;
  const auto load = [&](const auto& load_one) {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      const Tensor* row[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // A unit that does not exist takes the row of one that does: its results are not stored.
        const int unit = min(first_unit + 8 * half, hidden - 1);
        row[half] = w_hh + (static_cast<int64_t>(gate) * hidden + unit) * hidden;
      }
#pragma unroll
      for (int s = 0; s < Shape::kSteps; ++s) {
        const int column = first_column + 16 * s;
        if constexpr (Shape::kSharedVectors == 0) {
          load_one(weights[gate][s], row, column);
        } else if (s < Traits::kRegisterSteps) {
          load_one(weights[gate][min(s, Traits::kRegisterSteps - 1)], row, column);
        } else {
          uint32_t values[GridMma<Element>::kRegisters];
          load_one(values, row, column);
#pragma unroll
          for (int i = 0; i < Traits::kVectors; ++i) {
            shared[shared_weight<Element, Shape>(gate, s, i)] = {values[4 * i], values[4 * i + 1],
                                                                 values[4 * i + 2], values[4 * i + 3]};
          }
        }
      }
    }
  };
  using Tile = uint32_t[GridMma<Element>::kRegisters];
  using Rows = const Tensor* const[2];
  // Decided once: a branch at each load would make each wait for the one before.
  if (hidden % 4 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(FourColumns<Tensor>) == 0) {
    load([&](Tile& tile, Rows& row, int column) { load_tile<Element>(tile, row, column, hidden); });
  } else {
    load([&](Tile& tile, Rows& row, int column) { load_each_of_tile<Element>(tile, row, column, hidden); });
  }
}

// Products of one tile of eight rows with this warp's columns, to `to` (this lane's first, [row of the batch,
// gate, unit]).
template <typename Element, typename Shape>
__device__ __forceinline__ void multiply_tile(float* to,
                                              const typename GridMmaTraits<Element, Shape>::Weights& weights,
                                              const uint4* shared,
                                              const typename GridMma<Element>::Operand* b) {
  using Traits = GridMmaTraits<Element, Shape>;
  constexpr int kChains = Traits::kChains;
  float sums[kChains][Shape::kGates][4] = {};
#pragma unroll
  for (int s = 0; s < Shape::kSteps; ++s) {
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      if constexpr (Shape::kSharedVectors == 0) {
        GridMma<Element>::multiply_add(sums[s % kChains][gate], weights[gate][s], b[s]);
      } else if (s < Traits::kRegisterSteps) {
        GridMma<Element>::multiply_add(sums[s % kChains][gate],
                                       weights[gate][min(s, Traits::kRegisterSteps - 1)], b[s]);
      } else {
        uint32_t values[GridMma<Element>::kRegisters];
#pragma unroll
        for (int i = 0; i < Traits::kVectors; ++i) {
          const uint4 vector = shared[shared_weight<Element, Shape>(gate, s, i)];
          values[4 * i] = vector.x;
          values[4 * i + 1] = vector.y;
          values[4 * i + 2] = vector.z;
          values[4 * i + 3] = vector.w;
        }
        GridMma<Element>::multiply_add(sums[s % kChains][gate], values, b[s]);
      }
    }
  }
#pragma unroll
  for (int gate = 0; gate < Shape::kGates; ++gate) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i % 2 * Shape::kProductStride + gate * kGridMmaUnits + i / 2 * 8] =
          kChains == 2 ? sums[0][gate][i] + sums[kChains - 1][gate][i] : sums[0][gate][i];
    }
  }
}

// The state of a step from its words.
template <typename Traits, typename Operand, int kOperands, int kVectors>
__device__ __forceinline__ void operands_of_words(Operand (&b)[kOperands],
                                                  const typename Traits::Loads::Vector (&vectors)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kOperands; ++i) {
    if constexpr (Traits::kBare) {
      const FourWords& words = vectors[i / 2];
      b[i] = {unpack_bounded(words.value[i % 2 * 2]), unpack_bounded(words.value[i % 2 * 2 + 1])};
    } else {
      b[i] = Traits::Mma::operand(vectors[i]);
    }
  }
}

// That of the first step, h0: four columns at a time to put(tile * kSteps + step, words of theirs).
template <typename Element, typename Shape, typename Put>
__device__ __forceinline__ void load_first_state(const typename RnnMma<Element>::Tensor* h0,
                                                 const RnnPlace& place, int first_row, int first_column,
                                                 int hidden, const Put& put) {
  using Mma = GridMma<Element>;
#pragma unroll
  for (int tile = 0; tile < Shape::kTiles; ++tile) {
    const int64_t row = place.first_row + min(first_row + 8 * tile, place.rows - 1);
#pragma unroll
    for (int s = 0; s < Shape::kSteps; ++s) {
      float h[4];
      load_each_of_four(h, h0 + row * hidden, first_column + 16 * s, hidden);
      put(tile * Shape::kSteps + s, WordPair{Mma::word(h[0], h[1], 0), Mma::word(h[2], h[3], 0)});
    }
  }
}

template <typename Cell, typename Element, typename Shape>
__global__ __launch_bounds__(kGridThreads,
                             1) void rnn_grid_mma_kernel(const __grid_constant__ RnnArguments a) {
  using Traits = GridMmaTraits<Element, Shape, Cell::kBounded>;
  using Mma = GridMma<Element>;
  using Poll = typename Traits::Poll;
  using Tensor = typename Traits::Tensor;
  using Finish = GridFinish<Cell, Tensor, typename Shape::Finish>;
  constexpr int kGates = Cell::kGates;
  constexpr int kSteps = Shape::kSteps;
  constexpr int kTiles = Shape::kTiles;

  launch_dependents();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const RnnPlace place = rnn_place(a);
  const RnnDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int part_stride = Shape::part(a.rows);
  float* const inputs = dynamic_shared<float>();
  float* const products = inputs + Shape::Finish::kInputs;
  const auto* const h0 = static_cast<const Tensor*>(d.h0);
  const int first_column = warp * kSteps * 16 + 4 * in_four;
  typename Traits::Weights weights;
  uint4* const shared_weights =  // this thread's, [kGates, kSharedVectors, threads]
      reinterpret_cast<uint4*>(products + 2 * kGridWarps * part_stride) + threadIdx.x;
  load_weights<Element, Shape>(weights, shared_weights, static_cast<const Tensor*>(d.w_hh),
                               place.first_unit + group_of_four, first_column, hidden);

  Finish finish(a, place, inputs, warp, lane);
  // Of words without a number the second half of each buffer is not used.
  const GridExchange words(a, grid_mma_words(a.rows, kSteps));
  const int finishing = Finish::warps(place.rows);

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    float* const part = products + (step & 1) * kGridWarps * part_stride;
    before_products(step, warp < finishing);

    // The words of kTiles times eight rows. Those of the next are loaded while these are multiplied.
    typename Traits::Loads::Vector vectors[kTiles * Traits::kRowVectors];
    const auto poll_rows = [&](int row0) {
      uint32_t missing = 0;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int v = 0; v < Traits::kRowVectors; ++v) {
          const int i = tile * Traits::kRowVectors + v;
          vectors[i] = {};  // of rows and columns that do not exist
          const bool exists = row0 + 8 * tile + group_of_four < place.rows &&
                              (warp * kSteps + v * Traits::kVectorSteps) * 16 < hidden;
          missing |= exists ? 1u << i : 0u;
        }
      }
      const uint64_t* const from = words.of(step) + row0 / 8 * Traits::kOfEight +
                                   warp * Traits::kRowVectors * kGridMmaWords + 2 * lane;
      return Poll{from, step == 0 ? 0 : missing, Traits::kBare ? bounded_tag(step) : Mma::tag(step)};
    };
    Poll poll = poll_rows(0);
    poll.issue(vectors);
    for (int row0 = 0; row0 < place.rows; row0 += 8 * kTiles) {
      poll.complete(vectors);
      typename Mma::Operand b[kTiles * kSteps];
      const auto first_state = [&](const auto& put) {
        if (step == 0) {
          load_first_state<Element, Shape>(h0, place, row0 + group_of_four, first_column, hidden, put);
        }
      };
      // Into words where they are as large as these: of operands beside them TF32 spills registers.
      if constexpr (Traits::kBare) {
        operands_of_words<Traits>(b, vectors);
        first_state([&](int i, const WordPair& words) { b[i] = Mma::operand(words); });
      } else {
        first_state([&](int i, const WordPair& words) { vectors[i] = words; });
        operands_of_words<Traits>(b, vectors);
      }
      const bool more = row0 + 8 * kTiles < place.rows;
      if (Traits::kFewRegisters && more) {
        poll = poll_rows(row0 + 8 * kTiles);
        poll.issue(vectors);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile > 0 && row0 + 8 * tile >= place.rows) {
          break;
        }
        float* const to = part + warp * part_stride +
                          (row0 + 8 * tile + 2 * in_four) * Shape::kProductStride + group_of_four;
        multiply_tile<Element, Shape>(to, weights, shared_weights, b + tile * kSteps);
      }
      if (!Traits::kFewRegisters && more) {
        poll = poll_rows(row0 + 8 * kTiles);
        poll.issue(vectors);
      }
    }

    if (!meet(step, warp < finishing, warp * kSteps * 16 < hidden)) {
      continue;
    }
    float sum[Finish::kItems][kGates] = {};
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = min(finish.row(j), place.rows - 1);
      const float* const from =
          part + finish.part * part_stride + row * Shape::kProductStride + lane % kGridMmaUnits;
#pragma unroll
      for (int k = 0; k < kGridWarps / Shape::kParts; ++k) {
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          sum[j][gate] += from[k * Shape::kParts * part_stride + gate * kGridMmaUnits];
        }
      }
    }
    products_read(step, a.steps, finishing);
    float next[Finish::kItems];
    finish.compute(next, sum, place);
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = finish.row(j);
      const float neighbour = __shfl_down_sync(0xffffffff, next[j], 1);
      if (!last && finish.part == 0 && lane % 2 == 0 && row < place.rows) {
        uint64_t* const eight = words.of(step + 1) + row / 8 * Traits::kOfEight;
        const int pair = lane % kGridMmaUnits / 2;
        if constexpr (Traits::kBare) {
          // Of two blocks that share vectors this is one; the last has no other, and sends zeros in its
          // place.
          const uint32_t tag = bounded_tag(step + 1);
          uint32_t* const to = reinterpret_cast<uint32_t*>(eight + place.rank / 2 * kGridMmaWords) +
                               (row % 8 * 4 + pair / 2) * 4 + place.rank % 2 * 2 + pair % 2;
          store_word(to, pack_bounded<Element>(next[j], neighbour, tag));
          if (place.rank % 2 == 0 && place.rank + 1 == a.blocks) {
            store_word(to + 2, tag);
          }
        } else {
          store_word(eight + place.rank * kGridMmaWords + row % 8 * 8 + pair,
                     Mma::word(next[j], neighbour, Mma::tag(step + 1)));
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
