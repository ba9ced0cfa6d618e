// The recurrence of a GRU layer where a block, or a thread-block cluster, has the whole state, on tensor
// cores: one launch for all steps, W_hh in registers as the A operand.
//
// kSplits warps have 16 hidden units: three tiles of 16 rows of W_hh, one for each gate, so that the
// fragments of a lane hold the three sums of the same unit. Each warp has a part of the columns; B is h, 8
// rows of the batch at a time (kTiles times), in shared memory. The warps of a group hand each other their
// products, each lane finishes kOwn results (a unit of a row), and computes their gates in fp32. Of the state
// that is carried over fp32 stays; only the product sees it rounded to the operand's type. Exchange:
// gru_slice.cuh.
//
// The order of columns within a product is free as long as A and B agree. So lane t of four takes 16
// neighbouring bytes of each 64 (not the two times four that the fragment's picture shows): one 16-byte load
// of A or B is the operand of two mma, and rows of h 64 bytes apart modulo 128 are read without bank
// conflict.
//
// Budget of a step on an H200 (1.98 GHz), H = 512, 16 bits, up to 8 rows, 8 blocks of 8 warps with 8 pairs of
// mma and 3 gates each: 384 mma of 2048 FMAs in a block at about 1250 a cycle = 630 cycles; products to and
// from shared memory 8 warps * 12 * 128 bytes = 100 and a barrier of two warps; gates of two results 130;
// exchange of 5 rows * 128 bytes 700, of which a receiver's side is bandwidth (gru_slice.cuh). Sum about 1600
// cycles, 0.8 us. Measured 1.30 us with 5 rows, 1.37 with 8: products 600, adding up 200, gates 170, sending
// 370, the rest 1000 of waiting. In 16 blocks 0.80 us with one row, 1.19 with 8; H = 256 in 8 blocks 0.73,
// in 4 blocks 0.95; H = 128 in a block 0.85. Each 8 rows more, H = 512 in 8 blocks: 1.2 us.
//
// Beside its steps the launch of that layer takes 6.1 us: 1.5 thousand cycles until W_hh is sent for, 6.6
// thousand until it is there (7 groups read the same 3 MB from the L2 at 6 TB/s), 2.5 thousand of biases, of
// finishing the first state and of the cluster's barrier. When h0 was read after W_hh and not before it,
// those were 6.5 thousand.
//
// TF32, H = 512, 16 blocks, two tiles at once (the policy takes gru_grid_mma.cuh there, but for few steps,
// and where that has more than 16 rows a group and clusters have not): 1.9 us with 3 rows, 2.1 with 5, 2.5
// with 11, where 22 KB of state arrive in each block in each step, 1700 cycles, after two tiles of 1300
// cycles of mma. H = 256, 8 blocks: 0.80 with 3 rows, 0.88 with 5.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_gates.cuh"
#include "cuda/device/gru_operands.cuh"
#include "cuda/device/gru_slice.cuh"
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/sync.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

// How a kernel is cut. kThreads: at most.
template <typename Element_, int blocks, int threads, int splits, int pairs, int tiles>
struct GruClusterMmaShape {
  using Element = Element_;
  using Operand = typename GruMma<Element>::Operand;
  static constexpr int kBlocks = blocks;  // of a cluster; 1: a block alone
  static constexpr int kThreads = threads;
  static constexpr int kSplits = splits;  // of the columns, each another warp's
  static constexpr int kPairs = pairs;    // of mma of a warp and tile
  static constexpr int kTiles = tiles;    // of 8 rows of the batch at once
  static constexpr int kColumns = kMmaPairColumns<Element> * pairs * splits;  // of h that products cover
  static constexpr int kResults = 4 * tiles;                              // of a lane, each with three gates
  static constexpr int kOwn = kResults > splits ? kResults / splits : 1;  // that it finishes
  static constexpr int kAhead = 4;
  static constexpr int kUnits = 16;  // of a warp

  __host__ __device__ static constexpr int padded_rows(int rows_of_group) {
    return (rows_of_group + 8 * kTiles - 1) / (8 * kTiles) * (8 * kTiles);
  }
  // Of h in shared memory, in operands: 64 bytes modulo 128.
  __host__ __device__ static constexpr int row_stride(int units_of_block) {
    const int columns = kBlocks * units_of_block > kColumns ? kBlocks * units_of_block : kColumns;
    const int pair = kMmaPairColumns<Element>;
    return (columns + 2 * pair - 1) / (2 * pair) * (2 * pair) + pair;
  }
  __host__ __device__ static constexpr int warps(int units_of_block) {
    return units_of_block / kUnits * kSplits;
  }
  // Floats: products that warps exchange [2, groups, splits, kResults, 3, 32].
  __host__ __device__ static constexpr int products(int units_of_block) {
    return kSplits == 1 ? 0 : 2 * warps(units_of_block) * kResults * 3 * 32;
  }
  // Two mbarriers, h [2, rows, row_stride], products, projections [kAhead, kOwn * 3, kThreads], carried [rows
  // / (8 kTiles), kOwn, kThreads].
  static constexpr size_t shared_bytes(int rows_of_group, int units_of_block) {
    return 16 + 2 * sizeof(Operand) * padded_rows(rows_of_group) * row_stride(units_of_block) +
           sizeof(float) * (products(units_of_block) +
                            kOwn * kThreads * (kAhead * 3 + padded_rows(rows_of_group) / (8 * kTiles)));
  }
};

// Values as they lie in memory to operands, in place. Nothing to do in 16 bits.
template <typename Element>
__device__ __forceinline__ void gru_round(uint4& bits) {
  using Mma = GruMma<Element>;
  if constexpr (!std::is_same_v<typename Mma::Operand, typename Mma::Tensor>) {
    float4 values;
    memcpy(&values, &bits, sizeof(bits));
    bits = {Mma::to_operand(values.x), Mma::to_operand(values.y), Mma::to_operand(values.z),
            Mma::to_operand(values.w)};
  }
}

template <typename Shape>
__global__ __launch_bounds__(Shape::kThreads,
                             1) void gru_cluster_mma_kernel(const __grid_constant__ GruArguments a) {
  using Element = typename Shape::Element;
  using Mma = GruMma<Element>;
  using Tensor = typename Mma::Tensor;
  using Operand = typename Mma::Operand;
  constexpr int kBlocks = Shape::kBlocks;
  constexpr int kSplits = Shape::kSplits;
  constexpr int kPairs = Shape::kPairs;
  constexpr int kTiles = Shape::kTiles;
  constexpr int kResults = Shape::kResults;
  constexpr int kOwn = Shape::kOwn;
  constexpr int kAhead = Shape::kAhead;
  constexpr int kVector = 16 / sizeof(Operand);
  constexpr int kRows = 8 * kTiles;
  constexpr bool kInCluster = kBlocks > 1;
  // Chains of mma that do not wait for each other: three gates, and twice that where few warps run.
  constexpr int kChains = kTiles == 1 && kPairs <= 4 && Shape::kThreads <= 256 ? 2 : 1;

  const int thread = kept_thread_index();
  const int lane = thread % 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int group = thread / 32 / kSplits;  // of 16 units
  const int split = thread / 32 % kSplits;
  const int stride = Shape::row_stride(a.units);
  const int buffer_size = Shape::padded_rows(a.rows) * stride;
  const int steps = static_cast<int>(a.steps);

  uint64_t* const arrived = dynamic_shared<uint64_t>();  // [2]: all of a buffer's state is there
  Operand* const buffers = reinterpret_cast<Operand*>(arrived + 2);
  float* const products = reinterpret_cast<float*>(buffers + 2 * buffer_size);
  float* const projections = products + Shape::products(a.units);
  float* const carried = projections + kAhead * kOwn * 3 * Shape::kThreads + thread;
  const uint32_t bytes = place.rows * (kBlocks - 1) * a.units * sizeof(Operand);  // of a step, to this block

  if constexpr (kInCluster) {
    if (thread == 0) {
      gru_expect_first_states(arrived, bytes);
    }
  }

  const auto* const h0 = static_cast<const Tensor*>(d.h0) + static_cast<int64_t>(place.first_row) * hidden;
  gru_ask_for_first_state(buffers, stride, h0, place.rows, hidden, thread);
  // W_hh, once: rows g and g + 8 of each gate's tile.
  const auto* const w_hh = static_cast<const Tensor*>(d.w_hh);
  const bool vectors = hidden % (16 / static_cast<int>(sizeof(Tensor))) == 0 && is_vector_aligned(w_hh);
  const int first_column = split * kPairs * kMmaPairColumns<Element> + in_four * kVector;
  uint4 low[3][kPairs];
  uint4 high[3][kPairs];
  const int first_of_lane = place.first_unit + group * 16 + group_of_four;
  if (vectors) {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const Tensor* const row = w_hh + (static_cast<int64_t>(gate) * hidden + first_of_lane) * hidden;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int column = first_column + pair * kMmaPairColumns<Element>;
        low[gate][pair] = uint4{0, 0, 0, 0};
        high[gate][pair] = uint4{0, 0, 0, 0};
        if (column < hidden && first_of_lane < hidden) {
          low[gate][pair] = *reinterpret_cast<const uint4*>(row + column);
        }
        if (column < hidden && first_of_lane + 8 < hidden) {
          high[gate][pair] = *reinterpret_cast<const uint4*>(row + 8 * static_cast<int64_t>(hidden) + column);
        }
      }
    }
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        gru_round<Element>(low[gate][pair]);
        gru_round<Element>(high[gate][pair]);
      }
    }
  } else {
#pragma unroll
    for (int gate = 0; gate < 3; ++gate) {
      const Tensor* const row = w_hh + (static_cast<int64_t>(gate) * hidden + first_of_lane) * hidden;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const int column = first_column + pair * kMmaPairColumns<Element>;
        low[gate][pair] =
            gru_load_operands<Element>(first_of_lane < hidden ? row : nullptr, column, hidden, false);
        high[gate][pair] = gru_load_operands<Element>(
            first_of_lane + 8 < hidden ? row + 8 * static_cast<int64_t>(hidden) : nullptr, column, hidden,
            false);
      }
    }
  }
  // This thread's own results, kOwn neighbours of 4 * tile + i (see the fragments): the split's share. The
  // first is at own_row of kRows and at own_unit, the others so many further.
  const int first_result = kResults >= kSplits ? split * kOwn : split;
  const bool has_own = kResults >= kSplits || split < kResults;
  const int own_row = first_result / 4 * 8 + 2 * in_four + first_result % 2;
  const int own_unit = place.first_unit + group * 16 + group_of_four + first_result % 4 / 2 * 8;
  constexpr auto row_further = [](int j) { return j / 4 * 8 + j % 2; };
  constexpr auto unit_further = [](int j) { return j % 4 / 2 * 8; };
  const int turns = (place.rows + kRows - 1) / kRows;

  // The projections, kAhead turns ahead: each lane its own. Pointers that step along cost less than addresses
  // that are computed.
  float* projection = projections + thread;
  int slot = 0;
  const float* ahead_from = d.gates + gru_time(a, place.direction, 0) * a.gate_step +
                            static_cast<int64_t>(place.first_row + own_row) * a.gate_row + own_unit;
  const int64_t ahead_turn = kRows * a.gate_row;
  const int64_t ahead_step = (place.direction == 0 ? a.gate_step : -a.gate_step) - (turns - 1) * ahead_turn;
  int ahead_left = has_own ? steps * turns : 0;
  int ahead_row = own_row;
  // Into where `projection` points; moves on.
  const auto fetch = [&] {
    if (ahead_left > 0) {
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (ahead_row + row_further(j) < place.rows && own_unit + unit_further(j) < place.end_unit) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            copy_async_4(projection + (j * 3 + gate) * Shape::kThreads,
                         ahead_from + row_further(j) * a.gate_row + gate * hidden + unit_further(j));
          }
        }
      }
    }
    commit_async_copies();
    --ahead_left;
    if (turns == 1) {
      ahead_from += ahead_step;
    } else {
      ahead_row += kRows;
      const bool wrap = ahead_row - own_row >= turns * kRows;
      ahead_from += wrap ? ahead_step : ahead_turn;
      ahead_row = wrap ? own_row : ahead_row;
    }
    slot = (slot + 1) % kAhead;
    projection += (slot == 0 ? -(kAhead - 1) : 1) * kOwn * 3 * Shape::kThreads;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    fetch();
  }
  // Of units g and g + 8, or of the one that all own results are of.
  constexpr int kBiases = kOwn < 4 ? 1 : 2;
  GruBias bias[kBiases];
#pragma unroll
  for (int i = 0; i < kBiases; ++i) {
    const int unit = own_unit + 8 * i;
    bias[i] = gru_load_bias<Tensor>(d, hidden, unit, unit < place.end_unit);
  }

  const GruSlice slice =
      gru_slice(thread, place.rows, a.units / kVector, stride * static_cast<int>(sizeof(Operand)));

  Tensor* y = static_cast<Tensor*>(d.y) + gru_time(a, place.direction, 0) * a.y_step +
              static_cast<int64_t>(place.first_row + own_row) * a.y_row + own_unit;
  const int64_t y_turn = kRows * a.y_row;
  const int64_t y_step = (place.direction == 0 ? a.y_step : -a.y_step) - (turns - 1) * y_turn;

  // The state in fp32: of the only turn in registers, of several in shared memory.
  float values[kOwn];
#pragma unroll 4
  for (int row0 = 0; row0 < place.rows; row0 += kRows) {
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const int row = row0 + own_row + row_further(j);
      const int unit = own_unit + unit_further(j);
      values[j] = has_own && row < place.rows && unit < hidden
                      ? to_op(h0[static_cast<int64_t>(row) * hidden + unit])
                      : 0.0f;
      if (turns > 1) {
        carried[(row0 / kRows * kOwn + j) * Shape::kThreads] = values[j];
      }
    }
  }
  gru_take_first_state<kAhead, std::is_same_v<Operand, Tensor>>(
      buffers, buffer_size, stride, place.rows, hidden, thread, [](uint4& x) { gru_round<Element>(x); });
  __syncthreads();
  if constexpr (kInCluster) {  // no block writes into another before that one has begun and filled its memory
    cluster_arrive();
    cluster_wait();
  }

  GruInput input[kOwn];
  const auto read_input = [&] {
    wait_async_copies<kAhead - 1>();
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const GruBias& b = bias[j % 4 / 2 % kBiases];
      const float* const from = projection + j * 3 * Shape::kThreads;
      input[j] = {from[0] + b.r, from[Shape::kThreads] + b.z, from[2 * Shape::kThreads] + b.in};
    }
  };
  read_input();
  const Operand* h = buffers + group_of_four * stride + first_column;
  Operand* next_own = buffers + buffer_size + own_row * stride + own_unit;
  Operand* next_slice = buffers + buffer_size + place.first_unit;
  float* const of_group = products + group * kSplits * kResults * 3 * 32 + lane;
  int to_other = buffer_size;  // from a buffer to the other
  int half = 0;                // of `products`, in turn
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
      float sums[kChains][kTiles][3][4] = {};
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 x = *reinterpret_cast<const uint4*>(h + (row0 + tile * 8) * stride +
                                                          pair * kMmaPairColumns<Element>);
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const uint4& l = low[gate][pair];
            const uint4& u = high[gate][pair];
            Mma::multiply_add(sums[0][tile][gate], {l.x, u.x, l.y, u.y}, {x.x, x.y});
            Mma::multiply_add(sums[kChains - 1][tile][gate], {l.z, u.z, l.w, u.w}, {x.z, x.w});
          }
        }
      }
      if constexpr (kChains == 2) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              sums[0][tile][gate][i] += sums[1][tile][gate][i];
            }
          }
        }
      }
      float own[kOwn][3];
      if constexpr (kSplits == 1) {
#pragma unroll
        for (int j = 0; j < kOwn; ++j) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            own[j][gate] = sums[0][j / 4][gate][j % 4];
          }
        }
      } else {
        // Each split's products of a result go to the one that finishes it.
        float* const to = of_group + half;
#pragma unroll
        for (int result = 0; result < kResults; ++result) {
          const bool mine = result / kOwn == split;
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const float sum = sums[0][result / 4][gate][result % 4];
            if (!mine) {
              to[((split * kResults + result) * 3 + gate) * 32] = sum;
            }
            own[result % kOwn][gate] = mine || result < kOwn ? sum : own[result % kOwn][gate];
          }
        }
        sync_named(1 + group, kSplits * 32);
        if (has_own) {
#pragma unroll
          for (int other = 1; other < kSplits; ++other) {
            const int from = (split + other) % kSplits;
#pragma unroll
            for (int j = 0; j < kOwn; ++j) {
#pragma unroll
              for (int gate = 0; gate < 3; ++gate) {
                own[j][gate] += to[((from * kResults + first_result + j) * 3 + gate) * 32];
              }
            }
          }
        }
        half = Shape::products(a.units) / 2 - half;
      }
      float* const my_carried = carried + row0 / kRows * kOwn * Shape::kThreads;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const float before = turns == 1 ? values[j] : my_carried[j * Shape::kThreads];
        const float value =
            gru_fast_unit(input[j], own[j][0], own[j][1], own[j][2], bias[j % 4 / 2 % kBiases].hn, before);
        values[j] = own_unit + unit_further(j) < place.end_unit ? value : 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        if (has_own && row0 + own_row + row_further(j) < place.rows) {
          next_own[(row0 + row_further(j)) * stride + unit_further(j)] = Mma::to_operand(values[j]);
        }
      }
      const int end_row0 = row0 + kRows;
      const bool more = end_row0 < place.rows;
      if (!more) {
        __syncthreads();
        if constexpr (kInCluster) {
          if (!last) {
            gru_send<kBlocks>(slice, next_slice, thread, place.rank, arrived + (step + 1) % 2);
          }
        }
      }
      // What no one waits for, while the state is on its way.
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        const int row = row0 + own_row + row_further(j);
        if (turns > 1) {
          my_carried[j * Shape::kThreads] = values[j];
        }
        if (has_own && row < place.rows && own_unit + unit_further(j) < place.end_unit) {
          y[row_further(j) * a.y_row + unit_further(j)] = from_op<Tensor>(values[j]);
          if (last) {
            static_cast<Tensor*>(
                d.hy)[static_cast<int64_t>(place.first_row + row) * hidden + own_unit + unit_further(j)] =
                from_op<Tensor>(values[j]);
          }
        }
      }
      fetch();
      read_input();
      row0 = end_row0;
      if (!more) {
        break;
      }
      y += y_turn;
    }
    y += y_step;
    h += to_other;
    next_own -= to_other;
    next_slice -= to_other;
    to_other = -to_other;
  }
}

}  // namespace aten_ext::cuda
