// One step of a cell for a few rows of the batch in one launch: both matrix-vector products, biases and
// gates. Formula: ops/rnn/cells.cuh.
//
// A hidden unit needs kGates rows of W_ih, as many of W_hh and all of x and h, and nothing of another unit's
// result: a warp (or four, which split the columns) has a unit, reads its rows once, 16 bytes a lane where
// they are whole vectors, and no block waits for another. The order of every sum is fixed: the same input
// gives the same bits.
//
// This for one row, and in fp32 for a few; several rows on tensor cores are in ops/rnn/cell_mma.cuh.
//
// Bytes: kGates * H * (I + H) * sizeof(T), the weights, once for kRows rows of the batch, mostly from the L2
// for the others, whose blocks run beside these; x and h are small and come from the caches. FLOPs: 2 a
// weight and row. Memory-bound: a GRU of I = 256, H = 512 in fp32 is 4.7 MB, 1.1 us at 4.2 TB/s. A launch
// alone takes 0.9, and a chain of loads (weights, sums over lanes, gates) about 1.5. Timings:
// docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/math.h"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/rnn/cell_mma.cuh"
#include "ops/rnn/cell_step.h"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/one_row.cuh"
#include "ops/rnn/reduce.cuh"

namespace aten_ext::cuda {

constexpr int kCellFmaWarps = 4;

// ---- kernel ------------------------------------------------------------------------------------------

template <typename Cell, int kRows>
struct Sums {
  float value[kRows][Cell::kSums];
};

// Adds rows of a matrix [kGates * hidden, length] (W_hh if kHidden, else W_ih) times vectors [kRows, length]
// to a unit's sums, for the columns of this lane.
template <typename Cell, typename T, int kRows, bool kHidden>
__device__ __forceinline__ void multiply(Sums<Cell, kRows>& sums, const T* matrix,
                                         const T* const (&vector)[kRows], int unit, int hidden, int length,
                                         int lane, int lanes) {
  constexpr int kVector = Vector<T>::kSize;
  constexpr int kGates = Cell::kGates;
  constexpr auto sum_of = [](int gate) { return kHidden ? Cell::hidden_sum(gate) : Cell::input_sum(gate); };
  const T* row[kGates];
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    row[gate] = matrix + (gate * static_cast<int64_t>(hidden) + unit) * length;
  }
  bool aligned = length % kVector == 0 && is_vector_aligned(matrix);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    aligned = aligned && is_vector_aligned(vector[r]);
  }
  if (aligned) {
#pragma unroll(kRows > kSeveralRows ? 2 : 4)
    for (int at = lane * kVector; at < length; at += lanes * kVector) {
      T w[kGates][kVector];
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        load_vector(w[gate], row[gate] + at);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        T x[kVector];
        load_vector(x, vector[r] + at);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float xi = to_op(x[i]);
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            float& sum = sums.value[r][sum_of(gate)];
            sum = fmaf(to_op(w[gate][i]), xi, sum);
          }
        }
      }
    }
    return;
  }
#pragma unroll 4
  for (int at = lane; at < length; at += lanes) {
    float w[kGates];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      w[gate] = to_op(row[gate][at]);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float x = to_op(vector[r][at]);
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        float& sum = sums.value[r][sum_of(gate)];
        sum = fmaf(w[gate], x, sum);
      }
    }
  }
}

// Grid: [hidden units / units of a block, directions, rows of the batch / kRows]. kSplit warps share a unit.
// kNarrow, of one row of the batch: not all rows of the matrices are whole vectors. A kernel of its own, for
// it needs more registers.
template <typename Cell, typename T, int kRows, int kSplit, bool kNarrow>
__global__ __launch_bounds__(kCellFmaWarps * 32) void rnn_cell_kernel(const __grid_constant__ CellParams p) {
  constexpr int kSums = Cell::kSums;
  constexpr int kLanes = 32 / kRows;  // that have the sums of the same row in the end
  launch_dependents();
  const CellDirection& d = p.direction[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int split = warp % kSplit;
  const int unit = static_cast<int>(blockIdx.x) * (kCellFmaWarps / kSplit) + warp / kSplit;
  const bool exists = unit < p.hidden;
  const int hidden = p.hidden;
  const int row0 = static_cast<int>(blockIdx.z) * kRows;

  // One lane finishes each row. What it needs beside the sums is on its way while they are made.
  const int row = row0 + lane / kLanes;
  const bool finishes = exists && split == 0 && lane % kLanes == 0 && row < p.batch;
  const int64_t at = static_cast<int64_t>(row) * hidden + unit;
  typename Cell::Bias bias;
  typename Cell::State state;
  float before = 0.0f;
  if (finishes) {
    bias = Cell::template load_each_bias<T>(d.b_ih, d.b_hh, hidden, unit);
    before = to_op(static_cast<const T*>(d.h)[row * p.h_row + unit]);
    state = load_cell_state<Cell, T>(p.carried[blockIdx.y], at);
  }

  Sums<Cell, kRows> sums = {};
  if (exists) {
    const auto* const w_ih = static_cast<const T*>(d.w_ih);
    const auto* const w_hh = static_cast<const T*>(d.w_hh);
    const T* x[kRows];
    const T* h[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {  // rows beyond the last are the last again, and not stored
      const int64_t of_batch = min(row0 + r, p.batch - 1);
      x[r] = static_cast<const T*>(d.x) + of_batch * p.x_row;
      h[r] = static_cast<const T*>(d.h) + of_batch * p.h_row;
    }
    const int part = split * 32 + lane;
    constexpr int kParts = kSplit * 32;
    // Vectors of fp32, a warp a unit: 5 to 10 % shorter than the unrolled loop, which 16 bits and four warps
    // keep.
    constexpr bool kOneRow = kNarrow || (kRows == 1 && kSplit == 1 && sizeof(T) == sizeof(float));
    if constexpr (kOneRow) {
      multiply_row<Cell, false, !kNarrow, (kSplit > 1)>(sums.value[0], w_ih, x[0], unit, hidden, p.input,
                                                        part, kParts);
      multiply_row<Cell, true, !kNarrow, (kSplit > 1)>(sums.value[0], w_hh, h[0], unit, hidden, hidden, part,
                                                       kParts);
    } else {
      multiply<Cell, T, kRows, false>(sums, w_ih, x, unit, hidden, p.input, part, kParts);
      multiply<Cell, T, kRows, true>(sums, w_hh, h, unit, hidden, hidden, part, kParts);
    }
  }
  reduce_over_team<32>(sums.value, lane);
  float (&sum)[kSums] = sums.value[0];
  if constexpr (kSplit > 1) {
    __shared__ float partial[kCellFmaWarps][kRows][kSums];
    if (lane % kLanes == 0) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        partial[warp][lane / kLanes][i] = sum[i];
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sum[i] = 0.0f;
#pragma unroll
      for (int other = 0; other < kSplit; ++other) {
        sum[i] += partial[warp / kSplit * kSplit + other][lane / kLanes][i];
      }
    }
  }

  if (finishes) {
    const float value = Cell::finish(sum, bias, before, state);
    store_cell_state<Cell, T>(p.carried[blockIdx.y], at, state);
    static_cast<T*>(d.hy)[at] = from_op<T>(value);
    if (d.y != nullptr) {
      static_cast<T*>(d.y)[row * p.y_row + unit] = from_op<T>(value);
    }
  }
}

// ---- launch ------------------------------------------------------------------------------------------

// Whether all rows that a kernel for one row of the batch reads are whole vectors of 16 bytes.
template <typename T>
bool has_vectors(const CellParams& p) {
  uintptr_t bytes = static_cast<uintptr_t>(p.input | p.hidden) * sizeof(T);
  for (int i = 0; i < p.directions; ++i) {
    const CellDirection& d = p.direction[i];
    for (const void* pointer : {d.w_ih, d.w_hh, d.x, d.h}) {
      bytes |= reinterpret_cast<uintptr_t>(pointer);
    }
  }
  return bytes % 16 == 0;
}

template <typename Cell, typename T, int kRows, int kSplit, bool kNarrow = false>
cudaError_t launch_rows(const CellParams& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.hidden, kCellFmaWarps / kSplit)),
                        static_cast<unsigned>(p.directions), static_cast<unsigned>(ceil_div(p.batch, kRows)));
  config.blockDim = dim3(kCellFmaWarps * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, rnn_cell_kernel<Cell, T, kRows, kSplit, kNarrow>, p);
}

template <typename Cell, typename T, int kRows, bool kNarrow = false>
cudaError_t launch_split(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  return kernel.split == 1 ? launch_rows<Cell, T, kRows, 1, kNarrow>(p, stream)
                           : launch_rows<Cell, T, kRows, kCellFmaWarps, kNarrow>(p, stream);
}

template <typename Cell, typename T>
cudaError_t launch_fma(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  if (kernel.rows == 1) {
    return has_vectors<T>(p) ? launch_split<Cell, T, 1>(p, kernel, stream)
                             : launch_split<Cell, T, 1, true>(p, kernel, stream);
  }
  // 16 bits of more rows are the tensor cores', but for few of a large GRU (cell_kernel.h).
  if constexpr (sizeof(T) == sizeof(float)) {
    if (kernel.rows == kRowsOfFp32) {
      return launch_split<Cell, T, kRowsOfFp32>(p, kernel, stream);
    }
  }
  if constexpr (sizeof(T) == sizeof(float) || std::is_same_v<Cell, GruCell>) {
    return launch_split<Cell, T, kSeveralRows>(p, kernel, stream);
  } else {
    return cudaErrorInvalidValue;
  }
}

template <typename Cell, typename Element, int kTiles, int kBatch>
cudaError_t launch_mma(const CellParams& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(ceil_div(p.hidden, kCellMmaUnits)),
           static_cast<unsigned>(ceil_div(p.batch, 16 * kTiles)), static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kCellMmaWarps * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, rnn_cell_mma_kernel<Cell, Element, kTiles, kBatch>, p);
}

template <typename Cell, typename Element>
cudaError_t launch_mma_rows(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  if (kernel.rows == 16) {
    return kernel.loads == 4 ? launch_mma<Cell, Element, 1, 4>(p, stream)
                             : launch_mma<Cell, Element, 1, 2>(p, stream);
  }
  return launch_mma<Cell, Element, 2, 2>(p, stream);
}

template <typename Cell>
cudaError_t launch_cell_of(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  const bool fma = kernel.math == Math::Fma;
  switch (p.dtype) {
    case Dtype::Float:
      return fma ? launch_fma<Cell, float>(p, kernel, stream)
                 : launch_mma_rows<Cell, Tf32>(p, kernel, stream);
    case Dtype::Half:
      return fma ? launch_fma<Cell, __half>(p, kernel, stream)
                 : launch_mma_rows<Cell, __half>(p, kernel, stream);
    case Dtype::BFloat16:
      return fma ? launch_fma<Cell, __nv_bfloat16>(p, kernel, stream)
                 : launch_mma_rows<Cell, __nv_bfloat16>(p, kernel, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

// Of each cell: compiled apart, for they take long.
cudaError_t launch_gru_cell(const CellParams& params, CellKernel kernel, cudaStream_t stream);
cudaError_t launch_lstm_cell(const CellParams& params, CellKernel kernel, cudaStream_t stream);
cudaError_t launch_rnn_tanh_cell(const CellParams& params, CellKernel kernel, cudaStream_t stream);
cudaError_t launch_rnn_relu_cell(const CellParams& params, CellKernel kernel, cudaStream_t stream);

}  // namespace aten_ext::cuda
