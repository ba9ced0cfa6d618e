// One step of a cell for several rows of the batch on tensor cores: both products, biases and gates in one
// launch. Formula: cells.cuh. One row, or fp32 without TF32: cell_step.cuh.
//
// A block has eight hidden units and kTiles * 16 rows of the batch: A is x and h, B the kGates rows of
// weights of each unit, with kSums sums. Its eight warps take every eighth chunk of 64 bytes of the rows of
// W_ih and then W_hh; kBatch chunks of a warp are loaded before the first is used, 16 bytes a lane. The order
// of columns within a product is free as long as A and B agree: lane t of four has 16 neighbouring bytes of
// each 64 (cluster_mma.cuh). Parts of the sums meet in shared memory in a fixed order: the same input gives
// the same bits.
//
// Bytes: kGates * H * (I + H) * sizeof(T) of weights, once for each 16 * kTiles rows. A GRU with I = H = 512
// in 16 bits has 3.1 MB: 0.75 us at 4.2 TB/s; a launch alone takes 0.9. Timings: docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/cell_step.h"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/operands.cuh"

namespace aten_ext::cuda {

// What an LSTM carries beside h, of the element `at`. T is the dtype of the tensors.
template <typename Cell, typename T>
__device__ __forceinline__ typename Cell::State load_cell_state(const CellCarried& carried, int64_t at) {
  typename Cell::State state;
  if constexpr (Cell::kStates > 0) {
    state.value[0] = carried.c_fp32 != nullptr ? carried.c_fp32[at]
                     : carried.c != nullptr    ? to_op(static_cast<const T*>(carried.c)[at])
                                               : 0.0f;
  }
  return state;
}

template <typename Cell, typename T>
__device__ __forceinline__ void store_cell_state(const CellCarried& carried, int64_t at,
                                                 const typename Cell::State& state) {
  if constexpr (Cell::kStates > 0) {
    if (carried.cy != nullptr) {
      static_cast<T*>(carried.cy)[at] = from_op<T>(state.value[0]);
    }
    if (carried.cy_fp32 != nullptr) {
      carried.cy_fp32[at] = state.value[0];
    }
  }
}

constexpr int kCellMmaWarps = 8;
constexpr int kCellMmaUnits = static_cast<int>(kUnitsOfMma);

// Grid: [units / 8, rows / (16 * kTiles), directions].
template <typename Cell, typename Element, int kTiles, int kBatch>
__global__ __launch_bounds__(kCellMmaWarps *
                             32) void rnn_cell_mma_kernel(const __grid_constant__ CellParams p) {
  using Mma = RnnMma<Element>;
  using Tensor = typename Mma::Tensor;
  constexpr int kGates = Cell::kGates;
  constexpr int kSums = Cell::kSums;
  constexpr int kColumns = kMmaPairColumns<Element>;  // of a chunk
  constexpr int kVector = kColumns / 4;
  constexpr int kRows = kTiles * 16;
  static_assert(kRows * kCellMmaUnits <= kCellMmaWarps * 32, "a thread finishes one unit of one row");
  __shared__ float partial[kCellMmaWarps][kRows][kSums][kCellMmaUnits];

  launch_dependents();
  const CellDirection& d = p.direction[blockIdx.z];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int group_of_four = thread % 32 / 4;  // g and t of the fragments
  const int in_four = thread % 4;
  const int hidden = p.hidden;
  const int first_unit = static_cast<int>(blockIdx.x) * kCellMmaUnits;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;

  // What this thread finishes, and what it needs for it: these loads have the products' time.
  const int row = first_row + thread / kCellMmaUnits;
  const int unit = first_unit + thread % kCellMmaUnits;
  const bool finishes = thread < kRows * kCellMmaUnits && row < p.batch && unit < hidden;
  float before = 0.0f;
  typename Cell::Bias bias;
  typename Cell::State state;
  if (finishes) {
    state = load_cell_state<Cell, Tensor>(p.carried[blockIdx.z], static_cast<int64_t>(row) * hidden + unit);
    before = to_op(static_cast<const Tensor*>(d.h)[row * p.h_row + unit]);
    bias = Cell::template load_each_bias<Tensor>(d.b_ih, d.b_hh, hidden, unit);
  }

  const auto* const w_ih = static_cast<const Tensor*>(d.w_ih);
  const auto* const w_hh = static_cast<const Tensor*>(d.w_hh);
  const auto* const x = static_cast<const Tensor*>(d.x);
  const auto* const h = static_cast<const Tensor*>(d.h);
  // Units and rows beyond the last are the last again: their results are not stored.
  const int weight_row = min(first_unit + group_of_four, hidden - 1);
  const int input_chunks = (p.input + kColumns - 1) / kColumns;
  const int chunks = input_chunks + (hidden + kColumns - 1) / kColumns;
  float sums[kTiles][kSums][4] = {};

  // load(row, column, length) -> 16 bytes, zero beyond the last column
  const auto multiply = [&](const auto& load) {
    for (int first = warp; first < chunks; first += kBatch * kCellMmaWarps) {
      uint4 weights[kBatch][kGates];
      uint4 vectors[kBatch][kTiles][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int chunk = first + i * kCellMmaWarps;
        const bool of_input = chunk < input_chunks;
        const int length = chunk >= chunks ? 0 : of_input ? p.input : hidden;
        const int column = (of_input ? chunk : chunk - input_chunks) * kColumns + in_four * kVector;
        const Tensor* const matrix = of_input ? w_ih : w_hh;
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          const int64_t of_gate = static_cast<int64_t>(gate) * hidden + weight_row;
          weights[i][gate] = load(matrix + of_gate * length, column, length);
        }
#pragma unroll
        for (int j = 0; j < 2 * kTiles; ++j) {
          const int64_t r = min(first_row + j * 8 + group_of_four, p.batch - 1);
          const Tensor* const from = of_input ? x + r * p.x_row : h + r * p.h_row;
          vectors[i][j / 2][j % 2] = load(from, column, length);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int chunk = first + i * kCellMmaWarps;
        if (chunk >= chunks) {
          break;
        }
#pragma unroll
        for (int gate = 0; gate < kGates; ++gate) {
          to_operands<Element>(weights[i][gate]);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint4& low = vectors[i][tile][0];
          uint4& high = vectors[i][tile][1];
          to_operands<Element>(low);
          to_operands<Element>(high);
          const auto add = [&](float (&sum)[4], const uint4& w) {
            Mma::multiply_add(sum, {low.x, high.x, low.y, high.y}, {w.x, w.y});
            Mma::multiply_add(sum, {low.z, high.z, low.w, high.w}, {w.z, w.w});
          };
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            if (Cell::input_sum(gate) == Cell::hidden_sum(gate) || chunk < input_chunks) {
              add(sums[tile][Cell::input_sum(gate)], weights[i][gate]);
            } else {
              add(sums[tile][Cell::hidden_sum(gate)], weights[i][gate]);
            }
          }
        }
      }
    }
  };
  const bool aligned = p.input % kVector == 0 && hidden % kVector == 0 && p.x_row % kVector == 0 &&
                       p.h_row % kVector == 0 && is_vector_aligned(w_ih) && is_vector_aligned(w_hh) &&
                       is_vector_aligned(x) && is_vector_aligned(h);
  if (aligned) {
    multiply([](const Tensor* from, int column, int length) {
      return column < length ? *reinterpret_cast<const uint4*>(from + column) : uint4{0, 0, 0, 0};
    });
  } else {
    multiply([](const Tensor* from, int column, int length) {
      Tensor values[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        values[i] = column + i < length ? from[column + i] : from_op<Tensor>(0.0f);
      }
      uint4 bits;
      memcpy(&bits, &values, sizeof(bits));
      return bits;
    });
  }

#pragma unroll
  for (int j = 0; j < 2 * kTiles; ++j) {
#pragma unroll
    for (int sum = 0; sum < kSums; ++sum) {
      const float* const from = sums[j / 2][sum] + j % 2 * 2;
      float* const to = partial[warp][j * 8 + group_of_four][sum] + 2 * in_four;
      to[0] = from[0];
      to[1] = from[1];
    }
  }
  __syncthreads();
  if (finishes) {
    float sum[kSums] = {};
#pragma unroll
    for (int part = 0; part < kCellMmaWarps; ++part) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sum[i] += partial[part][thread / kCellMmaUnits][i][thread % kCellMmaUnits];
      }
    }
    const float value = Cell::finish(sum, bias, before, state);
    const int64_t at = static_cast<int64_t>(row) * hidden + unit;
    store_cell_state<Cell, Tensor>(p.carried[blockIdx.z], at, state);
    static_cast<Tensor*>(d.hy)[at] = from_op<Tensor>(value);
    if (d.y != nullptr) {
      static_cast<Tensor*>(d.y)[row * p.y_row + unit] = from_op<Tensor>(value);
    }
  }
}

}  // namespace aten_ext::cuda
