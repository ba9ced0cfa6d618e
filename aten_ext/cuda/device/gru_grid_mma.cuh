// The recurrence of a GRU layer over the whole GPU on tensor cores: one launch for all steps, W_hh in
// registers as the A operand. See gru_grid.cuh for how the blocks share the state.
//
// A block has 16 hidden units: three tiles of 16 rows, one for each gate. Warp w has kSteps times 16 columns
// of them, B is the state of eight rows of the batch. The order of columns within a product is free as long
// as A and B agree: of each 16, lane t of four has columns 4 t + {0..3}, which makes them two words of the
// state, one load; and the units of one block are 16 such columns, so that a load of a warp (512 bytes, eight
// rows) is what one other block has published.
//
// Element: __half, __nv_bfloat16 (m16n8k16), or Tf32 (m16n8k8, twice as many: fp32 tensors, operands rounded
// to 10 bits of mantissa, accumulated in fp32; only where PyTorch allows cuDNN that). A word is two units and
// the number of the step: 2 * 16 + 32 bits, or in TF32 2 * 19 + 26.
//
// Registers: 96 of weights (16 bits, H up to 1024; TF32 up to 512) leave room for the words of the next eight
// rows. 192 (TF32, and 16 bits beyond) do not: a few dozen values, read once a step, are in local memory.
//
// TF32 up to H = 512, where a warp has 64 columns: both tiles of 16 rows are sent for at once and not one
// after the other (1.95 us a step for 2.04). Budget of such a step, 4 groups of 16 rows, each 32 blocks: the
// way of a word through the L2 0.7 us; 4.2 MB of words at 5.5 TB/s 0.75, if no poll comes too early; 384
// products of a block at 625 FMAs a cycle 630 cycles; sums, gates and stores 600. That is 2.1 us. Measured on
// an H200, us a step, and a cluster of 16 blocks beside it, whose state travels in stores of 16 bytes each:
//
//   batch                  8    16    24    32    48    64    96   128
//   4 groups over the GPU  1.07  1.12  1.20  1.26  1.84  1.94  3.06  3.52
//   7 clusters             1.88  1.91  1.92  2.07  2.19  2.48  2.86  4.65
//
// Two lanes that share a unit's sums, as in 16 bits, were slower (1.33 us at 8 rows).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "cuda/device/gru_grid.cuh"
#include "cuda/device/gru_operands.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/shared.cuh"

namespace aten_ext::cuda {

constexpr int kGridMmaUnits = 16;
constexpr int kGridMmaFewSteps = 4;    // times 16 columns of a warp: H up to 512
constexpr int kGridMmaSteps = 8;       // times 16 columns of a warp: H up to 1024
constexpr int kGridMmaMoreSteps = 16;  // up to 2048; 16 bits only
constexpr int kGridMmaWords = 64;      // that one block publishes of eight rows
// From a row's products to the next's: 4 modulo 16, so that the corners of a fragment fall into 32 banks.
constexpr int kGridMmaProductStride = 3 * kGridMmaUnits + 4;

// Rows of a group, eight at a time.
__host__ __device__ constexpr int gru_grid_mma_padded(int rows) {
  return (rows + 7) / 8 * 8;
}
// From one warp's products to the next's: 16 modulo 32, for the two halves of a warp read two of them.
__host__ __device__ constexpr int gru_grid_mma_part(int rows) {
  return gru_grid_mma_padded(rows) * kGridMmaProductStride + 16;
}
// Words of a group in one of the two buffers: [rows / 8, 16 columns, row of eight, 8].
__host__ __device__ constexpr int64_t gru_grid_mma_words(int rows, int steps) {
  return static_cast<int64_t>(gru_grid_mma_padded(rows)) / 8 * kGridWarps * steps * kGridMmaWords;
}

// Two units and the number of their step in 64 bits, and 16 columns of a tile of A.
template <typename Element>
struct GruGridMma {
  static constexpr int kTagBits = 32;
  static constexpr int kRegisters = 4;

  static __device__ __forceinline__ uint32_t pack(float x, float y) {
    const Element both[2] = {from_op<Element>(x), from_op<Element>(y)};
    uint32_t bits;
    memcpy(&bits, both, sizeof(bits));
    return bits;
  }
  static __device__ __forceinline__ uint64_t word(float x, float y, uint32_t tag) {
    return static_cast<uint64_t>(tag) << 32 | pack(x, y);
  }
  static __device__ __forceinline__ uint32_t tag(int64_t step) {
    return static_cast<uint32_t>(step);
  }
  // Columns 4 t + {0..3} of rows g and g + 8.
  static __device__ __forceinline__ void set(uint32_t (&a)[kRegisters], const float (&low)[4],
                                             const float (&high)[4]) {
    a[0] = pack(low[0], low[1]);
    a[1] = pack(high[0], high[1]);
    a[2] = pack(low[2], low[3]);
    a[3] = pack(high[2], high[3]);
  }
  using Operand = uint2;
  static __device__ __forceinline__ Operand operand(const WordPair& words) {
    return {static_cast<uint32_t>(words.first), static_cast<uint32_t>(words.second)};
  }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[kRegisters],
                                                      const Operand& b) {
    GruMma<Element>::multiply_add(sum, a, {b.x, b.y});
  }
};

template <>
struct GruGridMma<Tf32> {
  static constexpr int kTagBits = 26;
  static constexpr int kRegisters = 8;

  static __device__ __forceinline__ uint64_t word(float x, float y, uint32_t tag) {
    return static_cast<uint64_t>(tag) << 38 | static_cast<uint64_t>(round_to_tf32(y) >> 13) << 19 |
           round_to_tf32(x) >> 13;
  }
  static __device__ __forceinline__ uint32_t tag(int64_t step) {
    return static_cast<uint32_t>(step) & ((1u << kTagBits) - 1);
  }
  static __device__ __forceinline__ void set(uint32_t (&a)[kRegisters], const float (&low)[4],
                                             const float (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = round_to_tf32(low[i]);
      a[2 * i + 1] = round_to_tf32(high[i]);
    }
  }
  using Operand = WordPair;  // unpacked where it is used: that is fewer registers
  static __device__ __forceinline__ Operand operand(const WordPair& words) {
    return words;
  }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[kRegisters],
                                                      const Operand& b) {
    mma_m16n8k8_tf32(sum, {a[0], a[1], a[2], a[3]},
                     {static_cast<uint32_t>(b.first) << 13, static_cast<uint32_t>(b.first >> 19) << 13});
    mma_m16n8k8_tf32(sum, {a[4], a[5], a[6], a[7]},
                     {static_cast<uint32_t>(b.second) << 13, static_cast<uint32_t>(b.second >> 19) << 13});
  }
};

// How a kernel is cut: kSteps times 16 columns of a warp, kParts and kItems of GruFinish, kTiles of eight
// rows at once.
template <typename E, int steps, int parts, int items, int tiles>
struct GruGridMmaShape {
  using Element = E;
  using Tensor = typename GruMma<Element>::Tensor;
  using Finish = GruFinish<Tensor, kGridMmaUnits, parts, items>;
  static constexpr int kSteps = steps;
  static constexpr int kParts = parts;
  static constexpr int kTiles = tiles;
  // Of weights. Beyond 96 there is no room for the words of the next eight rows, nor for more products that
  // do not wait for one another.
  static constexpr bool kFewRegisters = 3 * steps * GruGridMma<Element>::kRegisters <= 96;

  // Dynamic shared memory: inputs, products [2, kGridWarps, padded rows, kGridMmaProductStride].
  static constexpr size_t bytes(int rows) {
    return sizeof(float) * (Finish::kInputs + 2 * kGridWarps * gru_grid_mma_part(rows));
  }
};

template <typename Shape>
__global__ __launch_bounds__(kGridThreads,
                             1) void gru_grid_mma_kernel(const __grid_constant__ GruArguments a) {
  using Element = typename Shape::Element;
  using Mma = GruGridMma<Element>;
  using Tensor = typename Shape::Tensor;
  using Finish = typename Shape::Finish;
  constexpr int kSteps = Shape::kSteps;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kOfEight = kGridWarps * kSteps * kGridMmaWords;
  using Poll = GruPoll<Mma::kTagBits, kTiles * kSteps, kSteps, kOfEight, kGridMmaWords>;
  constexpr int kChains = Shape::kFewRegisters ? 2 : 1;

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int part_stride = gru_grid_mma_part(a.rows);
  float* const inputs = dynamic_shared<float>();
  float* const products = inputs + Finish::kInputs;
  const auto* const w_hh = static_cast<const Tensor*>(d.w_hh);
  const auto* const h0 = static_cast<const Tensor*>(d.h0);

  const int first_column = warp * kSteps * 16 + 4 * in_four;
  struct alignas(4 * sizeof(Tensor)) Four {
    Tensor value[4];
  };
  // Four columns of a row, zero beyond the last.
  const auto load_vector_of_four = [&](float (&to)[4], const Tensor* row, int column) {
    Four four{};
    if (column < hidden) {
      four = *reinterpret_cast<const Four*>(row + column);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = to_op(four.value[i]);
    }
  };
  const auto load_each_of_four = [&](float (&to)[4], const Tensor* row, int column) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i] = column + i < hidden ? to_op(row[column + i]) : 0.0f;
    }
  };
  uint32_t weights[3][kSteps][Mma::kRegisters];
  const auto load_weights = [&](const auto& load_four) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const Tensor* row[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Or of some unit that exists: what is computed with it goes nowhere.
        const int unit = min(place.first_unit + group_of_four + 8 * half, hidden - 1);
        row[half] = w_hh + (static_cast<int64_t>(gate) * hidden + unit) * hidden;
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        float low[4];
        float high[4];
        load_four(low, row[0], first_column + 16 * s);
        load_four(high, row[1], first_column + 16 * s);
        Mma::set(weights[gate][s], low, high);
      }
    }
  };
  // Decided once: a branch at each load would make each wait for the one before.
  if (hidden % 4 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(Four) == 0) {
    load_weights(load_vector_of_four);
  } else {
    load_weights(load_each_of_four);
  }

  Finish finish(a, place, inputs, warp, lane);
  const GruWords words(a, gru_grid_mma_words(a.rows, kSteps));
  const int finishing = Finish::warps(place.rows);

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    float* const part = products + (step & 1) * kGridWarps * part_stride;
    gru_before_products(step, warp < finishing);

    // The words of kTiles times eight rows: those of the next are sent for before these ones' products.
    WordPair pairs[kTiles * kSteps];
    const auto poll_rows = [&](int row0) {
      uint32_t missing = 0;
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const int i = tile * kSteps + s;
          pairs[i] = {};  // of rows and columns that do not exist
          const bool exists =
              row0 + 8 * tile + group_of_four < place.rows && (warp * kSteps + s) * 16 < hidden;
          missing |= exists ? 1u << i : 0u;
        }
      }
      const uint64_t* const from =
          words.of(step) + row0 / 8 * kOfEight + warp * kSteps * kGridMmaWords + 2 * lane;
      return Poll{from, step == 0 ? 0 : missing, Mma::tag(step)};
    };
    Poll poll = poll_rows(0);
    poll.issue(pairs);
    for (int row0 = 0; row0 < place.rows; row0 += 8 * kTiles) {
      poll.complete(pairs);
      if (step == 0) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const int64_t row = place.first_row + min(row0 + 8 * tile + group_of_four, place.rows - 1);
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            float h[4];
            load_each_of_four(h, h0 + row * hidden, first_column + 16 * s);
            pairs[tile * kSteps + s] = {Mma::word(h[0], h[1], 0), Mma::word(h[2], h[3], 0)};
          }
        }
      }
      typename Mma::Operand b[kTiles * kSteps];
#pragma unroll
      for (int i = 0; i < kTiles * kSteps; ++i) {
        b[i] = Mma::operand(pairs[i]);
      }
      const bool more = row0 + 8 * kTiles < place.rows;
      if (Shape::kFewRegisters && more) {
        poll = poll_rows(row0 + 8 * kTiles);
        poll.issue(pairs);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile > 0 && row0 + 8 * tile >= place.rows) {
          break;
        }
        float sums[kChains][3][4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            Mma::multiply_add(sums[s % kChains][gate], weights[gate][s], b[tile * kSteps + s]);
          }
        }
        float* const to = part + warp * part_stride +
                          (row0 + 8 * tile + 2 * in_four) * kGridMmaProductStride + group_of_four;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // [row of the batch, unit]
            to[i % 2 * kGridMmaProductStride + gate * kGridMmaUnits + i / 2 * 8] =
                kChains == 2 ? sums[0][gate][i] + sums[kChains - 1][gate][i] : sums[0][gate][i];
          }
        }
      }
      if (!Shape::kFewRegisters && more) {
        poll = poll_rows(row0 + 8 * kTiles);
        poll.issue(pairs);
      }
    }

    if (!gru_meet(step, warp < finishing, warp * kSteps * 16 < hidden)) {
      continue;
    }
    float sum[Finish::kItems][3] = {};
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = min(finish.row(j), place.rows - 1);
      const float* const from =
          part + finish.part * part_stride + row * kGridMmaProductStride + lane % kGridMmaUnits;
#pragma unroll
      for (int k = 0; k < kGridWarps / Shape::kParts; ++k) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          sum[j][gate] += from[k * Shape::kParts * part_stride + gate * kGridMmaUnits];
        }
      }
    }
    gru_products_read(step, a.steps, finishing);
    float state[Finish::kItems];
    finish.states(state, sum, place);
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = finish.row(j);
      const float neighbour = __shfl_down_sync(0xffffffff, state[j], 1);
      if (!last && finish.part == 0 && lane % 2 == 0 && row < place.rows) {
        store_word(words.of(step + 1) + row / 8 * kOfEight + place.rank * kGridMmaWords + row % 8 * 8 +
                       lane % kGridMmaUnits / 2,
                   Mma::word(state[j], neighbour, Mma::tag(step + 1)));
      }
    }
    finish.write(a, place, state, last);
    if (!last) {
      finish.load_inputs(a, place);
    }
  }
}

}  // namespace aten_ext::cuda
