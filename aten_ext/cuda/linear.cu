// Linear layers with few rows: out = activation(beta * bias + alpha * mat1 * mat2).
//
//   mat1 [M, K], M from 1 to 64; mat2 [K, N], in memory [N, K] (nn.Linear's weight, transposed by a view) or
//   [K, N]; bias broadcast to [M, N]; activation: none, ReLU, or GELU in its tanh form,
//   0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415).
//
// Sums are fp32 in every dtype: fused multiply-adds for fp32 (never TF32), tensor cores for fp16 and bf16.
// The result is rounded once, at the end.
//
// Bytes: K N of the weight, once, and little else; FLOPs: 2 M K N. Ceilings on an H200, where a plain copy
// reaches 4.2 TB/s and fp32 multiply-adds 60 TFLOP/s:
//
//   bf16, 4096 x 4096: 33.5 MB, 8.0 us for any M up to 64
//   fp32, 4096 x 4096: 67 MB, 16 us; the multiply-adds take 0.57 us a row, so 18 us at M = 32, 36 at M = 64
//
// Below 16 rows the limit is memory: what counts is how many bytes are under way. At 4.2 TB/s and some 0.8 us
// from request to arrival that is 3.4 MB, 25 KB for each of 132 multiprocessors. Tiles of weight and mat1 go
// to shared memory in 16-byte asynchronous copies, several stages ahead: 50 to 100 KB a multiprocessor. Each
// tile of the weight is read by one block only; mat1 is read again by every tile of columns, from the L2,
// which costs M / (columns of a tile) of the weight's traffic.
//
// A tile of 64 columns of N = 4096 makes 64 blocks for 132 multiprocessors. So K is split: among the warps of
// a block, which take turns with the k of each stage, and among the blocks of a cluster (sm_90). Both add up
// in shared memory in a fixed order (linear_reduce.cuh), without atomics, workspace or a second launch.
//
// Not measured on hardware yet: the policy (linear_plan.cuh) is napkin maths, and the overrides start off.
#include "cuda/linear.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "cuda/device/cluster.cuh"
#include "cuda/device/linear_fma.cuh"
#include "cuda/device/linear_mma.cuh"
#include "cuda/device/linear_reduce.cuh"
#include "cuda/device/linear_tile.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linear_plan.cuh"

namespace aten_ext::cuda {
namespace {

// ---- kernel ------------------------------------------------------------------------------------------

struct Arguments {
  LinearParams p;
  int splits;  // the cluster's size
  int stages;  // of the whole K
};

template <typename T, bool transposed, int rows, int columns>
using Product =
    std::conditional_t<std::is_same_v<T, float>, FmaProduct<transposed, rows, columns, kDepth<float>, kWarps>,
                       MmaProduct<std::conditional_t<std::is_same_v<T, float>, __half, T>, transposed, rows,
                                  columns, kDepth<__half>, kWarps>>;

template <typename P>
struct Shared {
  static constexpr int kStageBytes = 16 * (P::X::kElements / P::X::kVector + P::W::kElements / P::W::kVector);
  static constexpr int kStages = std::min(kMostStages, kMostSharedBytes / kStageBytes);
  static constexpr int kPartialBytes = P::kDepthGroups * P::kPartialBytesOfGroup;
  static constexpr int kBytes = std::max(kStages * kStageBytes, kPartialBytes);
  static_assert(kStages >= 3 && kBytes <= kMostSharedBytes);
};

__device__ __forceinline__ float activate(float x, LinearActivation activation) {
  if (activation == LinearActivation::ReLU) {
    return x < 0.0f ? 0.0f : x;  // NaN stays
  }
  if (activation == LinearActivation::GELU) {
    const float inner = 0.7978845608f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
  }
  return x;
}

// Grid: for each tile of columns a cluster of `splits` blocks (or one block), each with its part of K.
template <typename T, bool transposed, int rows, int columns>
__global__ __launch_bounds__(kThreads,
                             kBlocksPerSM) void linear_kernel(const __grid_constant__ Arguments args) {
  using P = Product<T, transposed, rows, columns>;
  using S = Shared<P>;
  const LinearParams& p = args.p;
  T* shared = dynamic_shared<T>();
  const int rank = args.splits == 1 ? 0 : static_cast<int>(cluster_rank());
  const int first_column = static_cast<int>(blockIdx.x) / args.splits * columns;
  const int first = args.stages * rank / args.splits;
  const int count = args.stages * (rank + 1) / args.splits - first;

  // Where this thread's first vectors of the next stage to copy are, and how much of K is left there.
  using X = typename P::X;
  using W = typename P::W;
  int k_left = p.K - first * kDepth<T>;
  const int w_row = W::first_row() + (transposed ? first_column : first * kDepth<T>);
  const int w_column = W::column() + (transposed ? first * kDepth<T> : first_column);
  const T* w_from = static_cast<const T*>(p.mat2) + w_row * p.mat2_stride + w_column;
  const T* x_from =
      static_cast<const T*>(p.mat1) + X::first_row() * p.mat1_stride + first * kDepth<T> + X::column();
  const auto copy = [&](int slot, bool exists) {
    if (exists) {
      T* x = shared + slot * (X::kElements + W::kElements);
      const int n_left = p.N - first_column;
      W::template copy<kThreads>(x + X::kElements, w_from, p.mat2_stride, transposed ? n_left : k_left,
                                 transposed ? k_left : n_left);
      X::template copy<kThreads>(x, x_from, p.mat1_stride, p.M, k_left);
      w_from += transposed ? kDepth<T> : kDepth<T> * p.mat2_stride;
      x_from += kDepth<T>;
      k_left -= kDepth<T>;
    }
    commit_async_copies();  // also where there is nothing: groups are counted
  };
#pragma unroll 1
  for (int stage = 0; stage < S::kStages - 1; ++stage) {
    copy(stage, stage < count);
  }
  P product;
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < count; ++stage) {
    wait_async_copies<S::kStages - 2>();
    __syncthreads();  // this stage has arrived for all, and all are done with the one before
    copy(slot == 0 ? S::kStages - 1 : slot - 1, stage + S::kStages - 1 < count);
    const T* x = shared + slot * (X::kElements + W::kElements);
    product.accumulate(x, x + X::kElements);
    slot = slot == S::kStages - 1 ? 0 : slot + 1;
  }

  wait_async_copies<0>();
  __syncthreads();  // the partial sums take the place of the stages
  float* partial = dynamic_shared<float>();
  product.store(partial);
  const auto store = [&](int m, int column, float sum) {
    const int n = first_column + column;
    if (n >= p.N) {
      return;
    }
    float value = p.alpha * sum;
    if (p.bias != nullptr) {
      const T bias = static_cast<const T*>(p.bias)[m * p.bias_stride_m + n * p.bias_stride_n];
      value = fmaf(p.beta, to_op(bias), value);
    }
    static_cast<T*>(p.out)[m * p.out_stride + n] = from_op<T>(activate(value, p.activation));
  };
  reduce_partial_sums<kThreads, P::kDepthGroups, rows, columns, P::kPartialStride>(partial, p.M, args.splits,
                                                                                   store);
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename T, bool transposed, int rows, int columns>
cudaError_t launch_plan(const LinearParams& p, int splits, cudaStream_t stream) {
  constexpr int kBytes = Shared<Product<T, transposed, rows, columns>>::kBytes;
  const auto kernel = linear_kernel<T, transposed, rows, columns>;
  // More than 48 KB have to be asked for, once on each device.
  static std::atomic<uint64_t> asked{0};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (error == cudaSuccess && (device >= 64 || (asked.load(std::memory_order_relaxed) & bit) == 0)) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error == cudaSuccess) {
      // All of it shared memory, none of it L1, or the second block may not find room.
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    asked.fetch_or(bit, std::memory_order_relaxed);
  }
  if (error != cudaSuccess) {
    return error;
  }
  const Arguments args{p, splits, divide_up(p.K, kDepth<T>)};
  static_assert(std::is_trivially_copyable_v<Arguments>, "kernel arguments are copied as bytes");
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(splits);
  cluster.val.clusterDim.y = 1;
  cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(divide_up(p.N, columns) * splits));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = splits > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <typename T, bool transposed>
cudaError_t launch_columns(const LinearParams& p, Plan plan, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, float>) {
    if (plan.rows == 4) {
      return launch_plan<T, transposed, 4, kWideColumns>(p, plan.splits, stream);
    }
  } else if (plan.columns == kNarrowColumns) {
    return plan.rows == 8 ? launch_plan<T, transposed, 8, kNarrowColumns>(p, plan.splits, stream)
                          : launch_plan<T, transposed, 16, kNarrowColumns>(p, plan.splits, stream);
  }
  switch (plan.rows) {
    case 8:
      return launch_plan<T, transposed, 8, kWideColumns>(p, plan.splits, stream);
    case 16:
      return launch_plan<T, transposed, 16, kWideColumns>(p, plan.splits, stream);
    case 32:
      return launch_plan<T, transposed, 32, kWideColumns>(p, plan.splits, stream);
    default:
      return launch_plan<T, transposed, 64, kWideColumns>(p, plan.splits, stream);
  }
}

template <typename T>
cudaError_t launch_dtype(const LinearParams& p, Plan plan, cudaStream_t stream) {
  return p.mat2_is_transposed ? launch_columns<T, true>(p, plan, stream)
                              : launch_columns<T, false>(p, plan, stream);
}

cudaError_t launch_with(const LinearParams& p, Plan plan, cudaStream_t stream) {
  switch (p.dtype) {
    case LinearDtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(p, plan, stream);
    case LinearDtype::Half:
      return launch_dtype<__half>(p, plan, stream);
    default:
      return launch_dtype<float>(p, plan, stream);
  }
}

}  // namespace

cudaError_t launch_linear(const LinearParams& params, int multiprocessors, cudaStream_t stream) {
  const bool is_float = params.dtype == LinearDtype::Float;
  return launch_with(params, choose_plan(params.M, params.N, params.K, is_float, multiprocessors), stream);
}

}  // namespace aten_ext::cuda
