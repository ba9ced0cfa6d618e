// The recurrence of a GRU layer where a block, or a thread-block cluster, has the whole state, with plain
// fused multiply-adds in fp32: one launch for all steps, W_hh in registers (16-bit tensors too, as fp32).
//
// A team of kTeam lanes owns kUnits hidden units: of W_hh the 3 * kUnits rows, of which lane l of the team
// holds the columns 4 * kTeam * j + 4 l + {0..3}, vector j = 0, 1, ... A step, for one row of the batch: read
// h from shared memory (16 bytes a lane), 12 * kUnits FMAs for each such vector, and add up over the lanes
// (gru_add_up.cuh), after which kLanes = kTeam / kUnits lanes have the same three sums. Of up to kLanes rows,
// a turn, each of these lanes keeps another, so that gates, fetching of projections and stores of y are done
// once for all of them. The new state goes to the block's own shared memory, and after a __syncthreads to the
// other blocks (gru_slice.cuh). What no one waits for, y and projections of later steps, follows after that.
//
// Projections come through shared memory, kAhead turns ahead (cp.async): with loads one step ahead a step of
// a small hidden size waited for them, not for arithmetic.
//
// Budget of a step on an H200 (1.98 GHz), H = 512, one row, 16 blocks of 8 warps with 192 weights a thread:
// FMAs 48 K / 128 lanes = 384 cycles, reads of h 8 warps * 8 * 64 bytes, 12 shuffles in 4 rounds of about 25
// cycles; gates 90 (a chain of two ex2 and two rcp); __syncthreads 40; exchange 580 (gru_slice.cuh). Sum
// about 1200 cycles, 0.6 us. Measured 0.88 us = 1750 cycles: products and sums 1000, gates 90, from there to
// the sending 340 (the slowest warp, a load, two stores), waiting 130 beside what follows. The products take
// twice their budget, why is not settled (192 of 255 registers are weights: banks?); with 96 they take 440 of
// 290. Blocks of 512 threads with half as many weights each are slower in everything else (1.09). Rows:
// 0.88 us for one, 1.22 for 2, 2.0 for 4, 5.25 for 11. H = 256, 8 blocks: 0.68 us for one row, 0.91 for
// 2, 1.64 for 5. A cluster barrier instead of stores that count: 1.22. A block alone, rows on SMs of their
// own: H = 16 0.24, 32 0.27, 64 0.34, 96 0.50, 128 0.60.
//
// Largest error against float64 after 9 steps, of values around 0.5: 2e-7.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/gru_add_up.cuh"
#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_gates.cuh"
#include "cuda/device/gru_slice.cuh"
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

// Four columns of a row of W_hh from `column`, zero beyond the last.
template <typename T>
__device__ __forceinline__ float4 gru_load_columns(const T* row, int column, int hidden) {
  float w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    w[i] = column + i < hidden ? to_op(row[column + i]) : 0.0f;
  }
  return {w[0], w[1], w[2], w[3]};
}
// The same where rows are vectors of four, as they lie in memory.
template <typename T>
using FourBits = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
template <typename T>
__device__ __forceinline__ FourBits<T> gru_load_four(const T* row, int column, int hidden) {
  FourBits<T> bits{};
  if (column < hidden) {
    bits = *reinterpret_cast<const FourBits<T>*>(row + column);
  }
  return bits;
}
template <typename T>
__device__ __forceinline__ float4 gru_from_bits(const FourBits<T>& bits) {
  T w[4];
  memcpy(&w, &bits, sizeof(bits));
  return {to_op(w[0]), to_op(w[1]), to_op(w[2]), to_op(w[3])};
}

// How a kernel is cut. kThreads: at most. The launch bounds name one block an SM: otherwise ptxas saves
// registers at the price of waiting for each load of h.
template <int blocks, int threads, int team, int units, int vectors>
struct GruClusterShape {
  static constexpr int kBlocks = blocks;  // of a cluster; 1: a block alone
  static constexpr int kThreads = threads;
  static constexpr int kTeam = team;
  static constexpr int kUnits = units;       // of a team
  static constexpr int kVectors = vectors;   // of a thread
  static constexpr int kColumns = 4 * team;  // of a vector
  static constexpr int kUnitsOfWarp = 32 / team * units;
  static constexpr int kLanes = team / units;  // that have the same unit's sums
  static constexpr int kRows = kLanes;         // of the batch in a turn: each of them finishes another
  static constexpr int kAhead = 4;             // turns that projections are fetched ahead
  static_assert(units <= team && 32 % team == 0);

  // Columns of a row of h in shared memory: whole vectors, and the units of all blocks.
  __host__ __device__ static constexpr int columns(int units_of_block) {
    const int of_blocks = kBlocks * units_of_block;
    const int of_vectors = kVectors * kColumns;
    return of_blocks > of_vectors ? of_blocks : of_vectors;
  }
  // Dynamic shared memory of a block: two mbarriers, h [2, rows, columns], projections [kAhead, 3, kThreads].
  static constexpr size_t shared_bytes(int rows_of_group, int warps) {
    return 16 + sizeof(float) * (2 * static_cast<size_t>(rows_of_group) * columns(warps * kUnitsOfWarp) +
                                 kAhead * 3 * kThreads);
  }
};

template <typename T, typename Shape>
__global__ __launch_bounds__(Shape::kThreads,
                             1) void gru_cluster_fma_kernel(const __grid_constant__ GruArguments a) {
  constexpr int kBlocks = Shape::kBlocks;
  constexpr int kTeam = Shape::kTeam;
  constexpr int kUnits = Shape::kUnits;
  constexpr int kVectors = Shape::kVectors;
  constexpr int kRows = Shape::kRows;
  constexpr int kColumns = Shape::kColumns;
  constexpr int kLanes = Shape::kLanes;
  constexpr int kAhead = Shape::kAhead;
  constexpr bool kInCluster = kBlocks > 1;

  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int in_team = lane % kTeam;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int columns = Shape::columns(a.units);
  const int buffer_size = a.rows * columns;
  uint64_t* const arrived = dynamic_shared<uint64_t>();  // [2]: all of a buffer's state is there
  float* const buffers = reinterpret_cast<float*>(arrived + 2);
  float* const projections = buffers + 2 * buffer_size;  // [kAhead, 3, kThreads]
  const int steps = static_cast<int>(a.steps);

  const uint32_t bytes = place.rows * (kBlocks - 1) * a.units * sizeof(float);  // of a step, to this block
  if constexpr (kInCluster) {
    if (thread == 0) {
      gru_expect_first_states(arrived, bytes);
    }
  }

  // The unit whose sums this lane will have, and the row that it finishes, of those of a turn.
  const int first_unit = place.first_unit + thread / kTeam * kUnits;
  const int member = in_team % kLanes;
  const int unit = first_unit + in_team / kLanes;
  const bool has_unit = unit < place.end_unit;
  const int turns = (place.rows + kRows - 1) / kRows;

  // The projections, kAhead turns ahead: each lane its own. Pointers that step along cost less than addresses
  // that are computed.
  float* projection = projections + thread;
  int slot = 0;
  const float* ahead_from = d.gates + gru_time(a, place.direction, 0) * a.gate_step +
                            static_cast<int64_t>(place.first_row + member) * a.gate_row + unit;
  const int64_t ahead_turn = kRows * a.gate_row;
  const int64_t ahead_step = (place.direction == 0 ? a.gate_step : -a.gate_step) - (turns - 1) * ahead_turn;
  int ahead_left = has_unit ? steps * turns : 0;
  int ahead_row = member;
  // Into where `projection` points; moves on.
  const auto fetch = [&] {
    if (ahead_row < place.rows && ahead_left > 0) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        copy_async_4(projection + gate * Shape::kThreads, ahead_from + gate * hidden);
      }
    }
    commit_async_copies();
    --ahead_left;
    if (turns == 1) {
      ahead_from += ahead_step;
    } else {
      ahead_row += kRows;
      const bool wrap = ahead_row - member >= place.rows;
      ahead_from += wrap ? ahead_step : ahead_turn;
      ahead_row = wrap ? member : ahead_row;
    }
    slot = (slot + 1) % kAhead;
    projection += slot == 0 ? -(kAhead - 1) * 3 * Shape::kThreads : 3 * Shape::kThreads;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    fetch();
  }

  // W_hh, once.
  const auto* const w_hh = static_cast<const T*>(d.w_hh);
  // The row of a unit's gate, or of some unit that exists: what is computed with it goes nowhere.
  const auto weight_row = [&](int i, int gate) {
    return w_hh + (static_cast<int64_t>(gate) * hidden + min(first_unit + i, hidden - 1)) * hidden;
  };
  float4 weights[kVectors][kUnits][3];
  if (hidden % 4 == 0 && (reinterpret_cast<uintptr_t>(w_hh) & (4 * sizeof(T) - 1)) == 0) {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      FourBits<T> bits[kVectors][3];  // all under way before the first is converted
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          bits[j][gate] = gru_load_four(weight_row(i, gate), j * kColumns + 4 * in_team, hidden);
        }
      }
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          weights[j][i][gate] = gru_from_bits<T>(bits[j][gate]);
        }
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          weights[j][i][gate] = gru_load_columns(weight_row(i, gate), j * kColumns + 4 * in_team, hidden);
        }
      }
    }
  }
  const GruBias bias = gru_load_bias<T>(d, hidden, unit, has_unit);

  const GruSlice slice =
      gru_slice(thread, place.rows, a.units / 4, columns * static_cast<int>(sizeof(float)));

  T* y = static_cast<T*>(d.y) + gru_time(a, place.direction, 0) * a.y_step +
         static_cast<int64_t>(place.first_row + member) * a.y_row + unit;
  const int64_t y_turn = kRows * a.y_row;
  const int64_t y_step = (place.direction == 0 ? a.y_step : -a.y_step) - (turns - 1) * y_turn;

  gru_first_state(buffers, buffer_size, columns,
                  static_cast<const T*>(d.h0) + static_cast<int64_t>(place.first_row) * hidden, place.rows,
                  hidden, thread, [](T x) { return to_op(x); });
  __syncthreads();
  if constexpr (kInCluster) {  // no block writes into another before that one has begun and filled its memory
    cluster_arrive();
    cluster_wait();
  }

  const auto read_input = [&] {
    wait_async_copies<kAhead - 1>();
    return GruInput{projection[0] + bias.r, projection[Shape::kThreads] + bias.z,
                    projection[2 * Shape::kThreads] + bias.in};
  };
  GruInput input = read_input();
  const int own = min(member, place.rows - 1) * columns + unit;  // in a buffer, first turn
  float value = buffers[own];
  const float* h = buffers + 4 * in_team;
  float* own_h = buffers + own;
  float* next_own = buffers + buffer_size + own;
  float* next_slice = buffers + buffer_size + place.first_unit;
  int to_other = buffer_size;  // from a buffer to the other
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    if constexpr (kInCluster) {
      if (step > 0) {
        uint64_t* const mbarrier = arrived + step % 2;
        wait_for_phase(mbarrier, (step - 1) / 2 % 2);
        if (thread == 0) {  // the next phase: of step + 2
          arrive_and_expect(mbarrier, bytes);
        }
      }
    }

    for (int row0 = 0;;) {
      const int rows = min(kRows, place.rows - row0);
      const float before = turns == 1 || member >= rows ? value : own_h[row0 * columns];
      float mine[3];
      // Each vector of h is loaded while the one before is multiplied.
      const float* from = h + row0 * columns;
      float4 x = *reinterpret_cast<const float4*>(from);
#pragma unroll 1
      for (int r = 0; r < rows; ++r) {
        float sums[kUnits][3] = {};
        const float* const next_from = r + 1 < rows ? from + columns : from;
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          const float4 next =
              *reinterpret_cast<const float4*>(j + 1 < kVectors ? from + (j + 1) * kColumns : next_from);
#pragma unroll
          for (int i = 0; i < kUnits; ++i) {
#pragma unroll
            for (int gate = 0; gate < 3; ++gate) {
              const float4& w = weights[j][i][gate];
              float& sum = sums[i][gate];
              sum = fmaf(w.w, x.w, fmaf(w.z, x.z, fmaf(w.y, x.y, fmaf(w.x, x.x, sum))));
            }
          }
          x = next;
        }
        from = next_from;
        gru_add_up<kTeam>(sums, lane);
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          mine[gate] = r == 0 || member == r ? sums[0][gate] : mine[gate];
        }
      }
      value = gru_fast_unit(input, mine[0], mine[1], mine[2], bias.hn, before);
      value = has_unit ? value : 0.0f;
      if (member < rows) {
        next_own[row0 * columns] = value;
      }
      const bool finishes = has_unit && member < rows;
      row0 += kRows;
      const bool more = row0 < place.rows;
      if (!more) {
        if constexpr (Shape::kThreads == 32) {
          __syncwarp();
        } else {
          __syncthreads();
        }
        if constexpr (kInCluster) {
          if (!last) {
            gru_send<kBlocks>(slice, next_slice, thread, place.rank, arrived + (step + 1) % 2);
          }
        }
      }
      // What no one waits for, while the state is on its way.
      if (finishes) {
        *y = from_op<T>(value);
        if (last) {
          static_cast<T*>(
              d.hy)[static_cast<int64_t>(place.first_row + row0 - kRows + member) * hidden + unit] =
              from_op<T>(value);
        }
      }
      fetch();
      input = read_input();
      if (!more) {
        break;
      }
      y += y_turn;
    }
    y += y_step;
    h += to_other;
    own_h += to_other;
    next_own -= to_other;
    next_slice -= to_other;
    to_other = -to_other;
  }
}

}  // namespace aten_ext::cuda
