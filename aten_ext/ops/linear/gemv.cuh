// Linear layers with one row, or up to four: out = epilogue(beta * bias + alpha * mat1 * mat2), each result
// the dot product of a row of mat1 and a row of the weight [N, K].
//
// Bytes: K N of the weight, once; FLOPs: 2 M K N. The memory is the limit, or the L2 where the weight is
// there. So weights go straight from there to registers, `steps` loads of each lane ahead of the
// multiply-adds: no shared memory, no barrier before the sums, and few registers, so that many warps wait at
// once. The tiles of few_rows.cu read up to 3.8 TB/s on an H200, this 4.2. Measured times:
// docs/kernels/linear.md.
//
// `warps` warps share k, in turns of 32 vectors of 16 bytes each, and have `columns` columns of the result
// together. Products and sums are fp32. Sums are added up in a fixed order: the same bits on every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/async_copy.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/linear/epilogue.cuh"
#include "ops/linear/few_rows.h"
#include "ops/linear/gemv_plan.h"

namespace aten_ext::cuda {

struct GemvArguments {
  LinearParams p;
  bool prefetches;  // the weight, before the launches before have ended
};

// Adds up `count` sums of a warp's lanes, count a power of two up to 32: sum i in the lanes from i * 32 /
// count on, 32 / count of them. Each exchange halves what a lane has: 16 sums take 16 shuffles, one by
// one 80.
template <int count>
__device__ __forceinline__ float add_lanes(float (&sums)[count]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int lanes = 16;
#pragma unroll
  for (int half = count / 2; half > 0; half /= 2) {
    const bool upper = (lane & lanes) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? sums[i] : sums[i + half];
      const float kept = upper ? sums[i + half] : sums[i];
      sums[i] = kept + __shfl_xor_sync(0xffffffff, sent, lanes);
    }
    lanes /= 2;
  }
#pragma unroll
  for (int left = 32 / count / 2; left > 0; left /= 2) {
    sums[0] += __shfl_xor_sync(0xffffffff, sums[0], left);
  }
  return sums[0];
}

template <int warps, int columns>
struct GemvShape {
  static constexpr int kThreads = gemv::threads_of(warps);
  static constexpr int kGroups = kThreads / 32 / warps;  // that share `columns` columns, of a block
  static constexpr int kColumns = kGroups * columns;     // of a block
};

// Grid: for each kColumns columns a block.
template <typename T, int rows, int warps, int columns, int steps>
__global__ __launch_bounds__(GemvShape<warps, columns>::kThreads) void gemv_kernel(
    const __grid_constant__ GemvArguments args) {
  using Shape = GemvShape<warps, columns>;
  constexpr int kGroups = Shape::kGroups;
  constexpr int kResults = rows * columns;  // of a group
  constexpr int kLanes = 32 / kResults;     // that have the same sum
  constexpr int kVector = Vector<T>::kSize;
  constexpr int kTurn = 32 * warps;  // vectors
  const LinearParams& p = args.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = thread / kTurn;
  const int first_column = static_cast<int>(blockIdx.x) * Shape::kColumns;
  const int vectors = p.K / kVector;
  const int first = thread % kTurn;  // this lane's first vector of a row

  // Beyond the last column or row: the last one again. What comes of it is nobody's.
  const uint4* weight[columns];
#pragma unroll
  for (int c = 0; c < columns; ++c) {
    const int column = min(first_column + group * columns + c, p.N - 1);
    weight[c] = reinterpret_cast<const uint4*>(static_cast<const T*>(p.mat2) + column * p.mat2_stride);
  }
  const uint4* mat1[rows];
#pragma unroll
  for (int m = 0; m < rows; ++m) {
    mat1[m] = reinterpret_cast<const uint4*>(static_cast<const T*>(p.mat1) + min(m, p.M - 1) * p.mat1_stride);
  }
  if (args.prefetches) {
    constexpr int kLine = 8;  // vectors
    for (int vector = first * kLine; vector < vectors; vector += kTurn * kLine) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        prefetch_to_l2(weight[c] + vector);
      }
    }
  }
  // The result that this thread finishes.
  const int of_group = warps == 1 ? group : thread / kResults;
  const int result = warps == 1 ? lane / kLanes : thread % kResults;
  const bool finishes = warps == 1 ? lane % kLanes == 0 : thread < kGroups * kResults;
  const int own_column = first_column + of_group * columns + result % columns;
  const int own_row = finishes ? result / columns : p.M;
  EarlyBias<T> bias(p, own_row, own_column, rows);
  wait_for_previous_launches();
  launch_dependents();
  bias.load(p, own_row, own_column);

  // Of this warp: lanes of its last turn may have nothing.
  const int turns = (vectors - (first - lane) + kTurn - 1) / kTurn;
  uint4 weight_bits[steps][columns], mat1_bits[steps][rows];
  const auto load = [&](int step, int turn) {
    const int vector = first + turn * kTurn;
    const bool exists = vector < vectors;
#pragma unroll
    for (int c = 0; c < columns; ++c) {
      weight_bits[step][c] = exists ? load_past_l1(weight[c] + vector) : uint4{};
    }
#pragma unroll
    for (int m = 0; m < rows; ++m) {
      mat1_bits[step][m] = exists ? mat1[m][vector] : uint4{};
    }
  };
#pragma unroll
  for (int step = 0; step < steps; ++step) {
    if (step < turns) {
      load(step, step);
    }
  }
  float sums[kResults] = {};
#pragma unroll 1
  for (int turn = 0; turn < turns; turn += steps) {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      if (turn + step < turns) {
        float w[columns][kVector];
#pragma unroll
        for (int c = 0; c < columns; ++c) {
          unpack<T>(w[c], weight_bits[step][c]);
        }
#pragma unroll
        for (int m = 0; m < rows; ++m) {
          float x[kVector];
          unpack<T>(x, mat1_bits[step][m]);
#pragma unroll
          for (int c = 0; c < columns; ++c) {
#pragma unroll
            for (int i = 0; i < kVector; ++i) {
              sums[m * columns + c] = fmaf(w[c][i], x[i], sums[m * columns + c]);
            }
          }
        }
        if (turn + step + steps < turns) {
          load(step, turn + step + steps);
        }
      }
    }
  }

  float sum[1] = {add_lanes(sums)};
  if constexpr (warps > 1) {
    __shared__ float of_warps[kGroups * warps][kResults];
    if (lane % kLanes == 0) {
      of_warps[thread / 32][lane / kLanes] = sum[0];
    }
    __syncthreads();
    if (!finishes) {
      return;
    }
    sum[0] = of_warps[of_group * warps][result];
#pragma unroll
    for (int warp = 1; warp < warps; ++warp) {
      sum[0] += of_warps[of_group * warps + warp][result];
    }
  }
  sum[0] *= p.alpha;
  bias.add_to(sum, p, own_row, own_column, rows, p.M);
  activate<T>(sum, p.epilogue);
  if (own_row < p.M && own_column < p.N) {
    static_cast<T*>(p.out)[own_row * p.out_stride + own_column] = from_op<T>(sum[0]);
  }
}

}  // namespace aten_ext::cuda
