// The backward of a step's gates, for a cell that says what one unit has to do:
//
//   Cell::Params                     its tensors; has batch, hidden, biases (BiasGradients) and tile
//   Cell::kGates                     rows of each bias a hidden unit
//   Cell::backward<T, n>(p, row, unit, sums)
//                                    n neighbouring units of a row: loads, gradients, stores; adds what was
//                                    stored of the four columns of the biases' gradients to `sums`
//
// Upstream sums the gradients of the biases in launches of their own, which read again what was just written.
// Here a block has all rows of its units, or a part of them, and sums along; the parts are added by a second
// launch, always in the same order.
//
// Sums are of what was stored, rounded to the tensors' dtype, as upstream's are; in fp32 (fp64 for fp64).
#pragma once

#include "core/math.h"
#include "device/division.cuh"
#include "device/shared.cuh"
#include "device/vector.cuh"
#include "ops/rnn/gates.cuh"
#include "ops/rnn/gates_backward.h"

namespace aten_ext::cuda {

// kCount neighbouring units of a row of a gradient. Neighbours in memory, if kCount is more than 1.
template <typename T, int kCount, typename Op>
__device__ __forceinline__ void load(Op (&to)[kCount], const Incoming& from, int64_t row, int64_t unit) {
  if (from.data == nullptr) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = Op(0);
    }
    return;
  }
  load(to, static_cast<const T*>(from.data) + row * from.row + unit * from.unit);
}

// What a reader of `x`, stored as T, finds.
template <typename T>
__device__ __forceinline__ MathType<T> stored(MathType<T> x) {
  return static_cast<MathType<T>>(to_op(from_op<T>(x)));
}

// The third gate of a GRU's biases is not the same of both: its fourth column is that of the hidden one.
template <typename T, int kGates, typename Op>
__device__ __forceinline__ void store_sum(const BiasGradients& to, int column, int64_t unit, int64_t hidden,
                                          Op sum) {
  T* const of_input = static_cast<T*>(to.input);
  T* const of_hidden = static_cast<T*>(to.hidden);
  if (column < kGates) {
    of_input[column * hidden + unit] = from_op<T>(sum);
  }
  if (of_hidden != nullptr && column != kGates - 1) {
    of_hidden[(column < kGates ? column : kGates - 1) * hidden + unit] = from_op<T>(sum);
  }
}

template <class Params>
struct BackwardArguments {
  Params p;
  Divider<uint32_t> tiles;  // of units; a block is one of them and a part of the rows
};

template <class Cell, typename T, int kCount, bool kSummed>
__global__ __launch_bounds__(
    kLanes*(kSummed ? most_warps(sizeof(MathType<T>))
                    : kWarpsOfMany)) void gates_backward_kernel(const __grid_constant__
                                                                    BackwardArguments<typename Cell::Params>
                                                                        args) {
  using Op = MathType<T>;
  constexpr int kUnits = kLanes * kCount;  // of a block
  const typename Cell::Params& p = args.p;
  const Quotient<uint32_t> place = args.tiles(blockIdx.x);
  const int64_t part = place.quotient;
  const int64_t first_unit = int64_t{place.remainder} * kUnits;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t unit = first_unit + lane * kCount;
  const int64_t first = part * p.tile.rows;
  const int64_t end = min(first + p.tile.rows, p.batch);

  Op sums[kSums][kCount] = {};
  if (unit < p.hidden) {
    for (int64_t row = first + threadIdx.y; row < end; row += blockDim.y) {
      Cell::template backward<T, kCount>(p, row, unit, sums);
    }
  }
  if constexpr (kSummed) {
    // [warps][kSums][kUnits]
    Op* const of_warp = dynamic_shared<Op>();
#pragma unroll
    for (int column = 0; column < kSums; ++column) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        of_warp[(threadIdx.y * kSums + column) * kUnits + lane * kCount + k] = sums[column][k];
      }
    }
    __syncthreads();
    const int threads = kLanes * static_cast<int>(blockDim.y);
    for (int i = static_cast<int>(threadIdx.y) * kLanes + lane; i < kSums * kUnits; i += threads) {
      const int column = i / kUnits;
      const int64_t of = first_unit + i % kUnits;
      if (of >= p.hidden) {
        continue;
      }
      Op sum = 0;
      for (int warp = 0; warp < static_cast<int>(blockDim.y); ++warp) {
        sum += of_warp[warp * kSums * kUnits + i];
      }
      if (p.biases.parts != nullptr) {
        static_cast<Op*>(p.biases.parts)[(part * kSums + column) * p.hidden + of] = sum;
      } else {
        store_sum<T, Cell::kGates>(p.biases, column, of, p.hidden, sum);
      }
    }
  }
}

// gridDim: tiles of 32 columns; a warp adds every sixteenth part.
constexpr int kAddingWarps = 16;

template <class Cell, typename T>
__global__ __launch_bounds__(kLanes* kAddingWarps) void add_gate_sums_kernel(
    const __grid_constant__ BackwardArguments<typename Cell::Params> args) {
  using Op = MathType<T>;
  __shared__ Op of_warp[kAddingWarps][kLanes];
  const typename Cell::Params& p = args.p;
  const int64_t columns = kSums * p.hidden;
  const int64_t at = int64_t{blockIdx.x} * kLanes + threadIdx.x;
  const Op* const parts = static_cast<const Op*>(p.biases.parts);
  Op sum = 0;
  if (at < columns) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < p.tile.parts; part += kAddingWarps) {
      sum += parts[part * columns + at];
    }
  }
  of_warp[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || at >= columns) {
    return;
  }
  Op total = 0;
#pragma unroll
  for (int warp = 0; warp < kAddingWarps; ++warp) {
    total += of_warp[warp][threadIdx.x];
  }
  store_sum<T, Cell::kGates>(p.biases, static_cast<int>(at / p.hidden), at % p.hidden, p.hidden, total);
}

// ---- launch ------------------------------------------------------------------------------------------

template <class Cell, typename T, int kCount, bool kSummed>
cudaError_t launch_backward(const typename Cell::Params& p, cudaStream_t stream) {
  const auto tiles = static_cast<uint32_t>(unit_tiles(p.hidden, kCount));
  const BackwardArguments<typename Cell::Params> args{p, Divider<uint32_t>(tiles)};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(tiles * p.tile.parts));
  config.blockDim = dim3(kLanes, static_cast<uint32_t>(p.tile.warps));
  config.dynamicSmemBytes = kSummed ? bytes_of_sums(p.tile, sizeof(MathType<T>)) : 0;
  config.stream = stream;
  const cudaError_t error =
      cudaLaunchKernelEx(&config, gates_backward_kernel<Cell, T, kCount, kSummed>, args);
  if (error != cudaSuccess || !kSummed || p.biases.parts == nullptr) {
    return error;
  }
  config.gridDim = dim3(static_cast<uint32_t>(ceil_div(kSums * p.hidden, int64_t{kLanes})));
  config.blockDim = dim3(kLanes, kAddingWarps);
  config.dynamicSmemBytes = 0;
  return cudaLaunchKernelEx(&config, add_gate_sums_kernel<Cell, T>, args);
}

template <class Cell, typename T>
cudaError_t launch_backward_dtype(const typename Cell::Params& p, cudaStream_t stream) {
  const bool summed = p.biases.input != nullptr;
  if constexpr (sizeof(T) < sizeof(double)) {
    if (p.tile.units == 2) {
      return summed ? launch_backward<Cell, T, 2, true>(p, stream)
                    : launch_backward<Cell, T, 2, false>(p, stream);
    }
  }
  return summed ? launch_backward<Cell, T, 1, true>(p, stream)
                : launch_backward<Cell, T, 1, false>(p, stream);
}

template <class Cell>
cudaError_t launch_gates_backward(const typename Cell::Params& p, cudaStream_t stream) {
  switch (p.dtype) {
    case Dtype::Float:
      return launch_backward_dtype<Cell, float>(p, stream);
    case Dtype::Double:
      return launch_backward_dtype<Cell, double>(p, stream);
    case Dtype::Half:
      return launch_backward_dtype<Cell, __half>(p, stream);
    case Dtype::BFloat16:
      return launch_backward_dtype<Cell, __nv_bfloat16>(p, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace aten_ext::cuda
