// Sums of columns. A block sums some rows of 128 columns, a warp every sixteenth of them; where rows are
// many, a second launch adds the parts up, always in the same order.
#include "ops/rnn/training/column_sums.h"

#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kLanes = kSumColumns / kMostUnits;
constexpr int kWarps = 16;
constexpr int kThreads = kLanes * kWarps;

template <typename T>
__device__ __forceinline__ void store_sum(const SummedMatrix& matrix, int64_t column, float sum) {
  static_cast<T*>(matrix.to)[column] = from_op<T>(sum);
  if (matrix.second != nullptr && column < matrix.second_columns) {
    static_cast<T*>(matrix.second)[column] = from_op<T>(sum);
  }
}

// gridDim: columns, parts, matrices. kCount: columns that a thread loads at once.
template <typename T, int kCount>
__global__ __launch_bounds__(kThreads) void column_sums_kernel(const __grid_constant__ ColumnSums p) {
  __shared__ float sums[kWarps][kSumColumns];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t parts = gridDim.y;
  const int64_t first = p.rows * blockIdx.y / parts;
  const int64_t end = p.rows * (blockIdx.y + 1) / parts;
  const SummedMatrix& matrix = p.matrix[blockIdx.z];
  const int64_t columns = matrix.columns;
  if (int64_t{blockIdx.x} * kSumColumns >= columns) {
    return;
  }
  const T* const from = static_cast<const T*>(matrix.from);
  // Four columns of a thread: neighbours, or 32 apart.
  constexpr int kApart = kCount == 1 ? kLanes : 1;
  const int of_thread = kCount == 1 ? lane : lane * kMostUnits;
  const int64_t column = int64_t{blockIdx.x} * kSumColumns + of_thread;
  float sum[kMostUnits] = {};
#pragma unroll 8
  for (int64_t row = first + warp; row < end; row += kWarps) {
    float x[kMostUnits] = {};
    if constexpr (kCount == kMostUnits) {
      if (column < columns) {
        load_pack(x, from + row * columns + column);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kMostUnits; ++k) {
        if (column + k * kApart < columns) {
          x[k] = to_op(from[row * columns + column + k * kApart]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kMostUnits; ++k) {
      sum[k] += x[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kMostUnits; ++k) {
    sums[warp][of_thread + k * kApart] = sum[k];
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x);
  const int64_t to = int64_t{blockIdx.x} * kSumColumns + own;
  if (own < kSumColumns && to < columns) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) {
      total += sums[i][own];
    }
    if (parts > 1) {
      p.partial[(blockIdx.z * parts + blockIdx.y) * p.columns + to] = total;
    } else {
      store_sum<T>(matrix, to, total);
    }
  }
}

// gridDim: columns, matrices.
template <typename T>
__global__ __launch_bounds__(kThreads) void add_parts_kernel(const __grid_constant__ ColumnSums p,
                                                             int64_t parts) {
  const int64_t column = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (column >= p.matrix[blockIdx.y].columns) {
    return;
  }
  const float* const from = p.partial + blockIdx.y * parts * p.columns + column;
  float total = 0.0f;
#pragma unroll 8
  for (int64_t i = 0; i < parts; ++i) {
    total += from[i * p.columns];
  }
  store_sum<T>(p.matrix[blockIdx.y], column, total);
}

template <typename T>
cudaError_t launch_dtype(const ColumnSums& p, cudaStream_t stream) {
  uintptr_t bits = 0;
  int64_t columns = 0;  // as many low bits are 0 as in all of them
  for (int i = 0; i < p.count; ++i) {
    bits |= bits_of(p.matrix[i].from);
    columns |= p.matrix[i].columns;
  }
  const bool fours = lies_in_fours(bits, columns, sizeof(T));
  const int64_t parts = sum_parts(p.count, p.rows, p.columns);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.columns, int64_t{kSumColumns})),
                        static_cast<unsigned>(parts), static_cast<unsigned>(p.count));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  const cudaError_t error = fours ? cudaLaunchKernelEx(&config, column_sums_kernel<T, kMostUnits>, p)
                                  : cudaLaunchKernelEx(&config, column_sums_kernel<T, 1>, p);
  if (error != cudaSuccess || parts == 1) {
    return error;
  }
  config.gridDim =
      dim3(static_cast<unsigned>(ceil_div(p.columns, int64_t{kThreads})), static_cast<unsigned>(p.count));
  return cudaLaunchKernelEx(&config, add_parts_kernel<T>, p, parts);
}

}  // namespace

cudaError_t launch_column_sums(const ColumnSums& p, cudaStream_t stream) {
  return with_dtype(p.dtype, [&](auto t) { return launch_dtype<decltype(t)>(p, stream); });
}

}  // namespace aten_ext::cuda
