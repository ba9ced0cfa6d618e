// Products over few rows. cuBLASLt's answers for them are one block that adds up a long sum by itself (24 to
// 52 us in fp32 where 8 rows of a layer of 256 need 3), or two launches. Here every weight is read once for 8
// rows by as many warps as the GPU takes, and all products of a kind, of both directions, are one launch.
#include "ops/rnn/training/few_rows.h"

#include <algorithm>

#include "core/math.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kRows = 8;  // that share the read of a weight
constexpr int kAhead =
    16;  // loads of a thread that are on their way: few warps have to hide the memory's latency

// ---- gates: a warp has a column of the result, its lanes share the sum -------------------------------

template <typename T, int kCount>
__device__ __forceinline__ void add_dots(float (&sum)[kRows], const T* rows, const T* w, int64_t k, int count,
                                         int lane) {
  for (int64_t at = lane * kCount; at < k; at += 32 * kCount) {
    float weights[kCount];
    load_pack(weights, w + at);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < count) {
        float x[kCount];
        load_pack(x, rows + r * k + at);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          sum[r] = fmaf(weights[i], x[i], sum[r]);
        }
      }
    }
  }
}

// gridDim: columns, rows, items.
template <typename T>
__global__ __launch_bounds__(kThreads) void gate_products_kernel(const __grid_constant__ GateProducts p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t column = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (column >= p.m) {
    return;
  }
  const GateProduct& item = p.item[blockIdx.z];
  const int first = static_cast<int>(blockIdx.y) * kRows;
  const int count = min(kRows, p.n - first);
  float sum[kRows] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (item.rows[i] != nullptr) {
      const int64_t k = item.k[i];
      const T* const rows = static_cast<const T*>(item.rows[i]) + first * k;
      const T* const w = static_cast<const T*>(item.w[i]) + column * k;
      if (item.fours[i]) {
        add_dots<T, kMostUnits>(sum, rows, w, k, count, lane);
      } else {
        add_dots<T, 1>(sum, rows, w, k, count, lane);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      sum[r] += __shfl_xor_sync(0xffffffff, sum[r], lanes);
    }
    if (r < count && lane == r) {
      item.to[(first + r) * p.m + column] = sum[r];
    }
  }
}

// ---- weights: a thread has a column of 16 rows of the result ------------------------------------------

constexpr int kGateRows = 16;  // of a block
constexpr int kColumns = 128;
constexpr int kRowsAtOnce = 32;  // of d, in shared memory

// gridDim: columns, gates, items.
template <typename T>
__global__ __launch_bounds__(kColumns) void weight_gradients_kernel(
    const __grid_constant__ WeightGradients p) {
  __shared__ float tile[kRowsAtOnce][kGateRows];
  const WeightGradient& item = p.item[blockIdx.z];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_column = int64_t{blockIdx.x} * kColumns;
  if (first_column >= item.columns) {
    return;  // of an item with fewer
  }
  const int64_t column = first_column + thread;
  const int64_t first_gate = int64_t{blockIdx.y} * kGateRows;
  const auto* const d = static_cast<const T*>(item.d);
  const auto* const x = static_cast<const T*>(item.x);
  float sum[kGateRows] = {};
  float of_bias = 0.0f;
  for (int first = 0; first < p.n; first += kRowsAtOnce) {
    const int count = min(kRowsAtOnce, p.n - first);
    __syncthreads();
    for (int i = thread; i < count * kGateRows; i += kColumns) {
      const int64_t gate = first_gate + i % kGateRows;
      tile[i / kGateRows][i % kGateRows] =
          gate < p.gates ? to_op(d[(first + i / kGateRows) * p.gates + gate]) : 0.0f;
    }
    __syncthreads();
    if (column < item.columns) {
#pragma unroll kAhead
      for (int row = 0; row < count; ++row) {
        const float value = to_op(x[(first + row) * item.columns + column]);
#pragma unroll
        for (int gate = 0; gate < kGateRows; ++gate) {
          sum[gate] = fmaf(tile[row][gate], value, sum[gate]);
        }
      }
    }
    if (thread < kGateRows) {
      for (int row = 0; row < count; ++row) {
        of_bias += tile[row][thread];
      }
    }
  }
  if (column < item.columns) {
#pragma unroll
    for (int gate = 0; gate < kGateRows; ++gate) {
      if (first_gate + gate < p.gates) {
        static_cast<T*>(item.to)[(first_gate + gate) * item.columns + column] = from_op<T>(sum[gate]);
      }
    }
  }
  if (item.of_bias != nullptr && blockIdx.x == 0 && thread < kGateRows && first_gate + thread < p.gates) {
    static_cast<T*>(item.of_bias)[first_gate + thread] = from_op<T>(of_bias);
  }
}

// ---- input: a lane has a column of 8 rows, the warps share the sum -------------------------------------

constexpr int kInputWarps = 16;
constexpr int kInputThreads = kInputWarps * 32;
constexpr int kGatesAtOnce = 512;  // of d, in shared memory

// What a direction's product adds to an input that was dropped: parts of sums are masked as sums are.
__device__ __forceinline__ void add_kept(float (&total)[kRows], float (&part)[kRows], const uint8_t* kept,
                                         float scale, int64_t first, int64_t columns, int rows) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t at = first + r * columns;
    if (r < rows && (kept[at / kKeptOfByte] >> at % kKeptOfByte & 1) != 0) {
      total[r] += part[r] * scale;
    }
    part[r] = 0.0f;
  }
}

// gridDim: columns, rows, items.
template <typename T, bool kDrops>
__global__ __launch_bounds__(kInputThreads) void input_gradients_kernel(
    const __grid_constant__ InputGradients p) {
  __shared__ float tile[kGatesAtOnce][kRows];
  __shared__ float parts[kInputWarps][kRows][32];
  const InputGradient& item = p.item[blockIdx.z];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (int64_t{blockIdx.x} * 32 >= item.columns) {
    return;  // of an item with fewer
  }
  const int64_t column = int64_t{blockIdx.x} * 32 + lane;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int rows = min(kRows, p.n - first_row);
  float sum[kRows] = {};
  [[maybe_unused]] float kept[kRows] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (item.d[i] == nullptr) {
      continue;
    }
    const auto* const d = static_cast<const T*>(item.d[i]) + first_row * p.gates;
    const auto* const w = static_cast<const T*>(item.w[i]);
    for (int64_t first = 0; first < p.gates; first += kGatesAtOnce) {
      const int count = static_cast<int>(min(int64_t{kGatesAtOnce}, p.gates - first));
      __syncthreads();
      for (int at = thread; at < count * kRows; at += kInputThreads) {
        const int row = at % kRows;
        tile[at / kRows][row] = row < rows ? to_op(d[row * p.gates + first + at / kRows]) : 0.0f;
      }
      __syncthreads();
      if (column < item.columns) {
#pragma unroll kAhead
        for (int gate = warp; gate < count; gate += kInputWarps) {
          const float weight = to_op(w[(first + gate) * item.columns + column]);
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            sum[r] = fmaf(tile[gate][r], weight, sum[r]);
          }
        }
      }
    }
    if constexpr (kDrops) {
      if (item.kept[i] != nullptr && column < item.columns) {
        add_kept(kept, sum, item.kept[i], p.kept_scale, first_row * item.columns + column, item.columns,
                 rows);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    parts[warp][r][lane] = kDrops ? sum[r] + kept[r] : sum[r];
  }
  __syncthreads();
  const int row = warp;  // a warp finishes a row
  if (row < rows && column < item.columns) {
    const int64_t at = (first_row + row) * item.columns + column;
    float total = item.added != nullptr ? item.added[at] : 0.0f;
#pragma unroll
    for (int i = 0; i < kInputWarps; ++i) {
      total += parts[i][row][lane];
    }
    static_cast<T*>(item.to)[at] = from_op<T>(total);
  }
}
static_assert(kInputWarps >= kRows, "a warp finishes a row");

unsigned blocks(int64_t count, int64_t of_block) {
  return static_cast<unsigned>(ceil_div(count, of_block));
}

}  // namespace

cudaError_t launch_gate_products(const GateProducts& params, cudaStream_t stream) {
  GateProducts p = params;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks(p.m, kWarps), blocks(p.n, kRows), static_cast<unsigned>(p.count));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    for (int i = 0; i < p.count; ++i) {
      GateProduct& item = p.item[i];
      for (int j = 0; j < 2; ++j) {
        item.fours[j] = lies_in_fours(bits_of(item.rows[j]) | bits_of(item.w[j]), item.k[j], sizeof(T));
      }
    }
    return cudaLaunchKernelEx(&config, gate_products_kernel<T>, p);
  });
}

cudaError_t launch_weight_gradients(const WeightGradients& p, cudaStream_t stream) {
  int64_t columns = 0;
  for (int i = 0; i < p.count; ++i) {
    columns = std::max(columns, p.item[i].columns);
  }
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(blocks(columns, kColumns), blocks(p.gates, kGateRows), static_cast<unsigned>(p.count));
  config.blockDim = dim3(kColumns);
  config.stream = stream;
  return with_dtype(
      p.dtype, [&](auto t) { return cudaLaunchKernelEx(&config, weight_gradients_kernel<decltype(t)>, p); });
}

cudaError_t launch_input_gradients(const InputGradients& p, cudaStream_t stream) {
  int64_t columns = 0;
  bool drops = false;
  for (int i = 0; i < p.count; ++i) {
    columns = std::max(columns, p.item[i].columns);
    drops = drops || p.item[i].kept[0] != nullptr;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks(columns, 32), blocks(p.n, kRows), static_cast<unsigned>(p.count));
  config.blockDim = dim3(kInputThreads);
  config.stream = stream;
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    return drops ? cudaLaunchKernelEx(&config, input_gradients_kernel<T, true>, p)
                 : cudaLaunchKernelEx(&config, input_gradients_kernel<T, false>, p);
  });
}

}  // namespace aten_ext::cuda
