// The recurrence of a GRU layer in fp32 over the whole GPU: one launch for all steps, W_hh in registers,
// plain fused multiply-adds.
//
// A team of kTeam lanes (a warp or half of one) owns kUnits hidden units: of W_hh the 3 * kUnits rows, of
// which lane l of the team holds the columns 4 * kTeam * j + 4 l + {0..3}, vector j = 0, 1, ... The first
// kVectors vectors stay in registers for the whole sequence, the next a.shared_vectors in shared memory, any
// others are read from global memory (the L2) in each step. A step of a team, for kRows rows of the batch at
// once: read h from shared memory (16 bytes a lane, no bank conflict), 12 * kUnits FMAs for each such vector,
// add up over the lanes, gates, publish.
//
// Adding up. P = kUnits * kRows units with three sums each lie as partial sums in the lanes of the team. In
// each round a lane hands half of its sums to the lane `width` away and takes that one's part of the other
// half, so that P triples in a warp cost 3 (P - 1) + 3 (5 - log2 P) shuffles instead of 15 P: 18 instead of
// 60 for P = 4. Afterwards kTeam / P lanes have the same triple, and all compute the same unit.
//
// Registers (ptxas, sm_90a): weights never leave them. Shapes with 192 weights a thread and the exchange
// through global memory, or with 96 in 512 threads, keep a few addresses in local memory, read once a step.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <type_traits>

#include "cuda/device/gru_add_up.cuh"
#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_exchange.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

__device__ __forceinline__ float gru_multiply_add(const float4& w, const float4& h, float sum) {
  return fmaf(w.w, h.w, fmaf(w.z, h.z, fmaf(w.y, h.y, fmaf(w.x, h.x, sum))));
}

// Four columns of a row of W_hh from `column`, zero beyond the last.
__device__ __forceinline__ float4 gru_load_weights(const float* row, int column, int hidden, bool vectors) {
  if (vectors && column + 3 < hidden) {
    return *reinterpret_cast<const float4*>(row + column);
  }
  float4 w;
  w.x = column + 0 < hidden ? row[column + 0] : 0.0f;
  w.y = column + 1 < hidden ? row[column + 1] : 0.0f;
  w.z = column + 2 < hidden ? row[column + 2] : 0.0f;
  w.w = column + 3 < hidden ? row[column + 3] : 0.0f;
  return w;
}

// How a kernel is cut. kThreads: at most; an SM's 65,536 registers are shared out among them.
template <int threads, int team, int units, int vectors, int rows>
struct GruFmaShape {
  static constexpr int kThreads = threads;
  static constexpr int kTeam = team;
  static constexpr int kUnits = units;       // of a team
  static constexpr int kVectors = vectors;   // in registers
  static constexpr int kRows = rows;         // of the batch at once
  static constexpr int kColumns = 4 * team;  // of a vector
  static constexpr int kUnitsOfWarp = 32 / team * units;
  static_assert(units * rows <= team, "a lane finishes one unit");

  // Columns of a row of h in shared memory: whole vectors.
  __host__ __device__ static constexpr int columns(int hidden) {
    return (hidden + kColumns - 1) / kColumns * kColumns;
  }
  // Dynamic shared memory of a block.
  static constexpr size_t shared_bytes(int hidden, int rows_of_group, int warps, int shared_vectors) {
    const size_t padded_rows = static_cast<size_t>(rows_of_group + kRows - 1) / kRows * kRows;
    return padded_rows * columns(hidden) * sizeof(float) +
           static_cast<size_t>(shared_vectors) * warps * kUnits * 3 * 32 * sizeof(float4);
  }
};

template <typename Shape>
__global__ __launch_bounds__(Shape::kThreads) void gru_fma_kernel(const __grid_constant__ GruArguments a) {
  constexpr int kUnits = Shape::kUnits;
  constexpr int kVectors = Shape::kVectors;
  constexpr int kRows = Shape::kRows;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kPairs = kUnits * kRows;
  constexpr int kLanes = Shape::kTeam / kPairs;  // that have the same unit in the end

  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_team = lane % Shape::kTeam;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int columns = Shape::columns(hidden);
  const int padded_rows = (a.rows + kRows - 1) / kRows * kRows;
  float* const buffers = dynamic_shared<float>();  // [padded_rows, columns]
  float4* const shared_weights =                   // [shared_vectors, kUnits * 3, warps, 32]
      reinterpret_cast<float4*>(buffers + padded_rows * columns);

  // Zero, also where no unit ever writes: the weights there are zero, and zero times NaN is not.
  for (int i = static_cast<int>(threadIdx.x); i < padded_rows * columns; i += static_cast<int>(blockDim.x)) {
    const int row = i / columns;
    const int column = i % columns;
    const bool given = row < place.rows && column < hidden;
    buffers[i] =
        given ? static_cast<const float*>(d.h0)[static_cast<int64_t>(place.first_row + row) * hidden + column]
              : 0.0f;
  }

  // W_hh, once.
  const auto* const w_hh = static_cast<const float*>(d.w_hh);
  const int first_unit = place.first_unit + static_cast<int>(threadIdx.x) / Shape::kTeam * kUnits;
  const bool vectors = hidden % 4 == 0 && is_vector_aligned(w_hh);
  const int all_vectors = columns / kColumns;
  // The row of a unit's gate, or of some unit that exists: what is computed with it goes nowhere.
  const auto weight_row = [&](int unit, int gate) {
    return w_hh + (static_cast<int64_t>(gate) * hidden + min(first_unit + unit, hidden - 1)) * hidden;
  };
  float4 weights[kVectors][kUnits][3];
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        weights[j][unit][gate] =
            gru_load_weights(weight_row(unit, gate), j * kColumns + 4 * in_team, hidden, vectors);
      }
    }
  }
  for (int j = 0; j < a.shared_vectors; ++j) {
#pragma unroll
    for (int i = 0; i < kUnits * 3; ++i) {
      shared_weights[((j * kUnits * 3 + i) * warps + warp) * 32 + lane] = gru_load_weights(
          weight_row(i / 3, i % 3), (kVectors + j) * kColumns + 4 * in_team, hidden, vectors);
    }
  }

  // The unit whose sums this lane will have, and its row among kRows.
  const int pair = in_team / kLanes;
  const int member = in_team % kLanes;
  const int row_of_pair = pair / kUnits;
  const int unit = first_unit + pair % kUnits;
  const bool has_unit = unit < place.end_unit;
  const GruBias bias = gru_load_bias<float>(d, hidden, unit, has_unit);
  // Nothing for rows and units that do not exist.
  const auto load_input = [&](int64_t step, int row) {
    GruInput x{0.0f, 0.0f, 0.0f};
    if (has_unit && row < place.rows && step < a.steps) {
      const float* const gates = d.gates + gru_time(a, place.direction, step) * a.gate_step +
                                 static_cast<int64_t>(place.first_row + row) * a.gate_row;
      x.r = gates[unit];
      x.z = gates[hidden + unit];
      x.n = gates[2 * hidden + unit];
    }
    return x;
  };
  GruInput input = load_input(0, row_of_pair);

  __syncthreads();

  const int directions = static_cast<int>(gridDim.x) / (a.groups * a.blocks);
  const auto words_of_row = [&](int64_t step, int row) {
    return a.words + (((step & 1) * directions + place.direction) * a.batch + place.first_row + row) *
                         static_cast<int64_t>(hidden);
  };

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    const float* const h = buffers;
    const int64_t time = gru_time(a, place.direction, step);

    for (int row0 = 0; row0 < place.rows; row0 += kRows) {
      const int row = row0 + row_of_pair;
      float sums[kPairs][3] = {};
      const auto add = [&](int vector, const auto& weight) {
        float4 x[kRows];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          x[r] = *reinterpret_cast<const float4*>(h + (row0 + r) * columns + vector * kColumns + 4 * in_team);
        }
#pragma unroll
        for (int i = 0; i < kUnits * 3; ++i) {
          const float4 w = weight(i);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            float& sum = sums[r * kUnits + i / 3][i % 3];
            sum = gru_multiply_add(w, x[r], sum);
          }
        }
      };
#pragma unroll
      for (int j = 0; j < kVectors; ++j) {
        if (kVectors == 1 || j < all_vectors) {
          add(j, [&](int i) { return weights[j][i / 3][i % 3]; });
        }
      }
      int j = kVectors;
      for (; j < min(all_vectors, kVectors + a.shared_vectors); ++j) {
        const float4* const from = shared_weights + ((j - kVectors) * kUnits * 3 * warps + warp) * 32 + lane;
        add(j, [&](int i) { return from[i * warps * 32]; });
      }
      for (; j < all_vectors; ++j) {
        add(j, [&](int i) {
          return gru_load_weights(weight_row(i / 3, i % 3), j * kColumns + 4 * in_team, hidden, vectors);
        });
      }
      gru_add_up<Shape::kTeam>(sums, lane);

      const float before = h[row * columns + min(unit, columns - 1)];
      const float value = gru_unit(input, sums[0][0], sums[0][1], sums[0][2], bias, before);
      // Of the next turn: the loads have until then, and where it is the next step, the barrier's time too.
      const bool more_rows = row0 + kRows < place.rows;
      input = load_input(more_rows ? step : step + 1, more_rows ? row + kRows : row_of_pair);
      if (has_unit && row < place.rows) {
        if (member == 0) {
          const int64_t batch_row = place.first_row + row;
          static_cast<float*>(d.y)[time * a.y_step + batch_row * a.y_row + unit] = value;
          if (last) {
            static_cast<float*>(d.hy)[batch_row * hidden + unit] = value;
          }
        }
        if (!last && member == 0) {
          store_flagged(words_of_row(step + 1, row) + unit, __float_as_uint(value),
                        static_cast<uint32_t>(step + 1));
        }
      }
    }
    if (last) {
      break;
    }

    __syncthreads();  // all of this block have read the state that is overwritten now
    gru_receive(words_of_row(step + 1, 0), place.rows, hidden, static_cast<uint32_t>(step + 1),
                [&](int row, int at, uint32_t data) { buffers[row * columns + at] = __uint_as_float(data); });
    __syncthreads();
  }
}

}  // namespace aten_ext::cuda
