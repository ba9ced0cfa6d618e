// The recurrence of a GRU layer over the whole GPU in fp32: one launch for all steps, W_hh in registers,
// plain fused multiply-adds. H up to 1024; see gru_grid.cuh for how the blocks share the state.
//
// Warp w of a block has columns [128 w, 128 w + 128) of the 3 * kUnits rows of its block's units: lane l of
// it 128 w + 2 l + {0, 1} and 64 further on. A step, kRows rows of the batch at once: two pairs of words a
// row from the L2, 12 * kUnits FMAs a row, sums over the lanes (gru_add_up), partial sums to shared memory.
//
// MEASURED_FMA
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/device/gru_fma.cuh"
#include "cuda/device/gru_grid.cuh"
#include "cuda/device/shared.cuh"

namespace aten_ext::cuda {

constexpr int kGridFmaColumns = 1024;

// Words of a group in one of the two buffers.
__host__ __device__ constexpr int64_t gru_grid_fma_words(int rows) {
  return static_cast<int64_t>(rows) * kGridFmaColumns;
}

// How a kernel is cut: kUnits of a block, kRows at once in products, kParts and kItems of GruFinish.
template <int units, int rows, int parts, int items>
struct GruGridFmaShape {
  static constexpr int kUnits = units;
  static constexpr int kRows = rows;
  using Finish = GruFinish<float, units, parts, items>;

  // Units of a group's rows in shared memory: whole turns of kRows.
  __host__ __device__ static constexpr int sums(int rows_of_group) {
    return (rows_of_group + rows - 1) / rows * rows * units;
  }
  // Dynamic shared memory: inputs, partial sums [2, 3, kGridWarps, sums()].
  static constexpr size_t bytes(int rows_of_group) {
    return sizeof(float) * (Finish::kInputs + 2 * 3 * kGridWarps * sums(rows_of_group));
  }
};

template <typename Shape>
__global__ __launch_bounds__(kGridThreads,
                             1) void gru_grid_fma_kernel(const __grid_constant__ GruArguments a) {
  using Finish = typename Shape::Finish;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kRows = Shape::kRows;
  constexpr int kPairs = kUnits * kRows;
  constexpr int kLanes = 32 / kPairs;  // that have the same sum in the end
  constexpr int kParts = 32 / kUnits / Finish::kRowsOfWarp;

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int sums_of_part = Shape::sums(a.rows);
  float* const inputs = dynamic_shared<float>();
  float* const partial = inputs + Finish::kInputs;
  const auto* const w_hh = static_cast<const float*>(d.w_hh);
  const auto* const h0 = static_cast<const float*>(d.h0);

  const int column[2] = {warp * 128 + 2 * lane, warp * 128 + 2 * lane + 64};
  // Two columns of a row, zero beyond the last.
  const bool vectors = hidden % 2 == 0 && reinterpret_cast<uintptr_t>(w_hh) % sizeof(float2) == 0;
  const auto load_two = [&](const float* row, int c) {
    if (vectors && c < hidden) {
      return *reinterpret_cast<const float2*>(row + c);
    }
    return float2{c < hidden ? row[c] : 0.0f, c + 1 < hidden ? row[c + 1] : 0.0f};
  };
  float2 weights[kUnits][3][2];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      // Or of some unit that exists: what is computed with it goes nowhere.
      const int64_t row = static_cast<int64_t>(gate) * hidden + min(place.first_unit + unit, hidden - 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        weights[unit][gate][half] = load_two(w_hh + row * hidden, column[half]);
      }
    }
  }

  Finish finish(a, place, inputs, warp, lane);
  const GruWords words(a, gru_grid_fma_words(a.rows));
  const int finishing = Finish::warps(place.rows);

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    float* const part = partial + (step & 1) * 3 * kGridWarps * sums_of_part;
    gru_before_products(step, warp < finishing);

    for (int row0 = 0; row0 < place.rows; row0 += kRows) {
      float2 h[kRows][2];
      if (step == 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int64_t row = place.first_row + min(row0 + r, place.rows - 1);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int c = column[half];
            h[r][half].x = c < hidden ? h0[row * hidden + c] : 0.0f;
            h[r][half].y = c + 1 < hidden ? h0[row * hidden + c + 1] : 0.0f;
          }
        }
      } else {
        WordPair pairs[2 * kRows] = {};
        uint32_t missing = 0;
#pragma unroll
        for (int i = 0; i < 2 * kRows; ++i) {
          missing |= row0 + i / 2 < place.rows && column[i % 2] < hidden ? 1u << i : 0u;
        }
        const uint64_t* const from =
            words.of(step) + static_cast<int64_t>(row0) * kGridFmaColumns + column[0];
        GruPoll<32, 2 * kRows, 2, kGridFmaColumns, 64> poll{from, missing, static_cast<uint32_t>(step)};
        poll.issue(pairs);
        poll.complete(pairs);
#pragma unroll
        for (int i = 0; i < 2 * kRows; ++i) {
          h[i / 2][i % 2] = {__uint_as_float(static_cast<uint32_t>(pairs[i].first)),
                             __uint_as_float(static_cast<uint32_t>(pairs[i].second))};
        }
      }

      float sums[kPairs][3];
#pragma unroll
      for (int i = 0; i < kPairs * 3; ++i) {
        const float2(&w)[2] = weights[i / 3 % kUnits][i % 3];
        const float2(&x)[2] = h[i / 3 / kUnits];
        sums[i / 3][i % 3] =
            fmaf(w[1].y, x[1].y, fmaf(w[1].x, x[1].x, fmaf(w[0].y, x[0].y, w[0].x * x[0].x)));
      }
      gru_add_up<32>(sums, lane);
      if (lane % kLanes == 0) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          part[(gate * kGridWarps + warp) * sums_of_part + row0 * kUnits + lane / kLanes] = sums[0][gate];
        }
      }
    }

    if (!gru_meet(step, warp < finishing, warp * 128 < hidden)) {
      continue;
    }
    float sum[Finish::kItems][3] = {};
#pragma unroll
    for (int j = 0; j < Finish::kItems; ++j) {
      const int row = min(finish.row(j), place.rows - 1);
#pragma unroll
      for (int k = 0; k < kGridWarps / kParts; ++k) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          sum[j][gate] += part[(gate * kGridWarps + k * kParts + finish.part) * sums_of_part + row * kUnits +
                               lane % kUnits];
        }
      }
    }
    gru_products_read(step, a.steps, finishing);
    float state[Finish::kItems];
    finish.states(state, sum, place);
    if (!last) {
#pragma unroll
      for (int j = 0; j < Finish::kItems; ++j) {
        if (finish.part == 0 && finish.row(j) < place.rows) {
          store_word(words.of(step + 1) + static_cast<int64_t>(finish.row(j)) * kGridFmaColumns + finish.unit,
                     static_cast<uint64_t>(step + 1) << 32 | __float_as_uint(state[j]));
        }
      }
    }
    finish.write(a, place, state, last);
    if (!last) {
      finish.load_inputs(a, place);
    }
  }
}

}  // namespace aten_ext::cuda
