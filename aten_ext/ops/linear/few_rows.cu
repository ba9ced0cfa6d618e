// Linear layers with few rows: out = epilogue(beta * bias + alpha * mat1 * mat2).
//
//   mat1 [M, K], M from 1 to 64; mat2 [K, N], in memory [N, K] (nn.Linear's weight, transposed by a view) or
//   [K, N]; bias broadcast to [M, N]; epilogue: none, ReLU, or GELU in its tanh form,
//   0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415).
//
// Bytes: K N of the weight, once, and little else; FLOPs: 2 M K N. Up to 8 rows the memory is the limit.
// Measured times, what limits them and what was tried: docs/kernels/linear.md.
//
// Tensor cores multiply, sums are fp32, the result is rounded once. fp32 is not TF32 (product.cuh). Tiles
// come in asynchronous copies, whole cache lines at a time, up to three stages ahead. K is split
// among the warps of a block and the blocks of a cluster, which add up in shared memory in a fixed order
// (reduce.cuh): no atomics, no workspace, no second launch.
//
// A launch may begin while the one before it ends (programmatic dependent launch). Before
// wait_for_previous_launches() it only asks for operands to come to the L2, through which all writes go. It
// lets the next launch begin after that wait: then everything before this launch has ended.
#include "ops/linear/few_rows.h"

#include <cstdint>
#include <type_traits>

#include "core/last_launch.h"
#include "core/launch.h"
#include "core/launch_sequence.h"
#include "device/async_copy.cuh"
#include "device/cluster.cuh"
#include "device/shared.cuh"
#include "device/sync.cuh"
#include "device/vector.cuh"
#include "ops/linear/covered_weight.cuh"
#include "ops/linear/epilogue.cuh"
#include "ops/linear/few_rows_plan.h"
#include "ops/linear/gemv.h"
#include "ops/linear/mat1.cuh"
#include "ops/linear/product.cuh"
#include "ops/linear/reduce.cuh"
#include "ops/linear/weight.cuh"

namespace aten_ext::cuda {
namespace {

using few_rows::kThreads;
using few_rows::kWarps;
using few_rows::Plan;

// ---- kernel ------------------------------------------------------------------------------------------

struct Arguments {
  LinearParams p;
  int splits;      // the cluster's size
  int stages;      // of the whole K
  int prefetched;  // stages of a block's weight that it asks for ahead
  int of_block;    // elements of a tile that each block of the cluster finishes
  float of_block_reciprocal;
};

// A block's warps: `groups` times 16 columns of the result, and for each group kWarps / groups warps that
// take turns with k.
template <typename T, bool transposed, int rows, int groups, bool vectors, bool alone>
struct Geometry {
  static constexpr int kDepthGroups = kWarps / groups;
  using Weight =
      std::conditional_t<vectors, LinearWeight<T, transposed, groups, kDepthGroups, few_rows::kStageSteps>,
                         CoveredWeight<T, transposed, groups, kDepthGroups, few_rows::kStageSteps>>;
  static constexpr int kColumns = Weight::kColumns;
  static constexpr int kDepth = Weight::kDepth;
  using Mat1 = std::conditional_t<vectors, LinearMat1<T, rows, kDepth>, CoveredMat1<T, rows, kDepth>>;
  // A stage: a tile of the weight, and of mat1.
  static constexpr few_rows::Operands kOperands{std::is_same_v<T, float>, transposed, vectors};
  static constexpr int kStageVectors = few_rows::stage_bytes(rows, groups, kOperands) / 16;
  static constexpr int kPartialStride = few_rows::partial_stride(groups);
  static constexpr int kWidth = rows * kColumns < 4 * kThreads ? 1 : 4;
  using Sums = PartialSums<kThreads, kDepthGroups, rows, kColumns, kPartialStride, kWidth>;
  static constexpr int kSlots = few_rows::slots(rows, groups, alone, kOperands);
  static constexpr int kRingBytes = few_rows::ring_bytes(rows, groups, alone, kOperands);
  static constexpr int kBytes = few_rows::smem_bytes(rows, groups, alone, kOperands);
  static_assert(kStageVectors * 16 == Weight::kBytes + Mat1::kBytes, "a plan's arithmetic is the kernel's");
  static_assert(kColumns == groups * few_rows::kColumnsOfGroup && Sums::kMaxBlocks == few_rows::kMaxSplits);
  static_assert(Sums::kSharedBytes == few_rows::exchange_bytes(rows, groups));
  static_assert(kDepthGroups * rows * kPartialStride * 4 <= kRingBytes);
  static_assert(kSlots >= 2 && kBytes <= few_rows::max_smem_bytes(rows, groups, alone, kOperands));
};

// fp32: a number below 2^-109 has parts below bf16's smallest, 2^-133, and loses them. Against a sum that
// shows where it is small itself, unless the other operand's numbers are above 2^30 / sqrt(K).
constexpr float kTinyOperand = 0x1p-109f;
constexpr float kTinySum = 0x1p-80f;

// One element of the product, by fused multiply-adds, the lanes of a warp taking turns with k.
template <bool transposed>
__device__ float dot_of_warp(const LinearParams& p, int m, int n) {
  const auto* x = static_cast<const float*>(p.mat1) + m * p.mat1_stride;
  const auto* w = static_cast<const float*>(p.mat2) + n * (transposed ? p.mat2_stride : 1);
  float sum = 0.0f;
  for (int k = static_cast<int>(threadIdx.x) % 32; k < p.K; k += 32) {
    sum = fmaf(x[k], w[k * (transposed ? 1 : p.mat2_stride)], sum);
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  }
  return sum;
}

// Whether a row of mat1 has numbers so small that a part of them, or all, is none of bf16's. Whole warps.
// Called, because inlined it costs the whole kernel up to 28 registers.
template <bool vectors>
__device__ __attribute__((noinline)) bool has_tiny(const float* x, int K) {
  constexpr int kAtOnce = vectors ? 4 : 1;
  uint32_t least = UINT32_MAX;  // of the sizes as bits; a zero wraps around and is the largest
#pragma unroll 4
  for (int k = static_cast<int>(threadIdx.x) % 32 * kAtOnce; k < K; k += 32 * kAtOnce) {
    float part[kAtOnce];
    load_elements(part, x + k);
#pragma unroll
    for (const float value : part) {
      least = min(least, (__float_as_uint(value) << 1) - 1);
    }
  }
  return __any_sync(0xffffffff, least < (__float_as_uint(kTinyOperand) << 1) - 1);
}

// fp32: forms those of a thread's sums again that are not finite, or so small that operands may have lost
// parts. A sum of 0 is most often one of zeros, and formed again only where mat1 says otherwise. Whole warps.
template <bool transposed, bool vectors, int rows, int sums>
__device__ __forceinline__ void dot_again(float (&result)[sums], const LinearParams& p, int first_row,
                                          int row_end, int n) {
  uint32_t wrong = 0;  // a bit for each
#pragma unroll
  for (int i = 0; i < sums; ++i) {
    // Above the largest float: an infinity, a NaN, or a sum that did not fit.
    const float size = fabsf(result[i]);
    const bool exists = first_row + i * rows < row_end && n < p.N;
    wrong |= exists && !(size >= kTinySum && size <= 3.402823466e38f) ? 1u << i : 0u;
  }
  if (!__any_sync(0xffffffff, wrong != 0)) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int zeros_row = -1;  // the last row with a sum of 0, and what has_tiny() said of it
  bool zeros_are_tiny = false;
#pragma unroll 1
  for (int i = 0; i < sums; ++i) {
    const int m = first_row + i * rows;
    float own = 0.0f;
#pragma unroll
    for (int j = 0; j < sums; ++j) {
      own = i == j ? result[j] : own;
    }
    unsigned again = __ballot_sync(0xffffffff, (wrong >> i & 1) != 0);
    const unsigned zeros = __ballot_sync(0xffffffff, own == 0.0f);
    while (again != 0) {
      const int which = __ffs(static_cast<int>(again)) - 1;
      again &= again - 1;
      const int row = __shfl_sync(0xffffffff, m, which);
      if ((zeros >> which & 1) != 0) {
        const auto* x = static_cast<const float*>(p.mat1) + row * p.mat1_stride;
        zeros_are_tiny = row == zeros_row ? zeros_are_tiny : has_tiny<vectors>(x, p.K);
        zeros_row = row;
        if (!zeros_are_tiny) {  // nor are the other zeros of this row
          again &= ~(zeros & __ballot_sync(0xffffffff, m == row));
          continue;
        }
      }
      const float dot = dot_of_warp<transposed>(p, row, __shfl_sync(0xffffffff, n, which));
#pragma unroll
      for (int j = 0; j < sums; ++j) {  // an index that is not known would move them to memory
        result[j] = lane == which && i == j ? dot : result[j];
      }
    }
  }
}

// Asks for a row of mat1 to come to the L2: the whole vectors of it, which are nearly all of its lines.
template <typename T>
__device__ __forceinline__ void prefetch_row(const T* row, int K) {
  const auto first = reinterpret_cast<uintptr_t>(row);
  const uintptr_t begin = (first + 15) / 16 * 16;
  const uintptr_t end = (first + static_cast<uintptr_t>(K) * sizeof(T)) / 16 * 16;
  if (begin < end) {
    prefetch_bulk_to_l2(reinterpret_cast<const void*>(begin), static_cast<int>(end - begin));
  }
}

// Grid: for each tile of columns a cluster of `splits` blocks (or one block), each with its part of K.
template <typename T, bool transposed, int rows, int groups, bool vectors, bool alone>
__global__ __launch_bounds__(kThreads, alone ? 1 : few_rows::kBlocksPerMultiprocessor) void linear_kernel(
    const __grid_constant__ Arguments args) {
  using G = Geometry<T, transposed, rows, groups, vectors, alone>;
  using W = typename G::Weight;
  const LinearParams& p = args.p;
  uint4* shared = dynamic_shared<uint4>();
  const int rank = args.splits == 1 ? 0 : static_cast<int>(cluster_rank());
  using Sums = typename G::Sums;
  const Sums partial_sums(dynamic_shared<char>() + G::kRingBytes, p.M, args.splits, args.of_block, rank);
  partial_sums.expect();
  const int first_column = static_cast<int>(blockIdx.x) / args.splits * G::kColumns;
  const int first = args.stages * rank / args.splits;
  const int count = args.stages * (rank + 1) / args.splits - first;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = thread / 32 / G::kDepthGroups;
  const int depth_group = thread / 32 % G::kDepthGroups;

  // What does not depend on the launch before comes to the L2 while that ends.
  W weight(p.mat2, p.mat2_stride, p.N, p.K, first_column, first * G::kDepth, args.splits == 1);
  W::prefetch(p.mat2, p.mat2_stride, p.N, p.K, first_column, first * G::kDepth, min(count, args.prefetched));
  for (int row = static_cast<int>(blockIdx.x); row < p.M && thread == kThreads - 1;
       row += static_cast<int>(gridDim.x)) {
    prefetch_row(static_cast<const T*>(p.mat1) + row * p.mat1_stride, p.K);
  }
  const int own_column = first_column + partial_sums.column();
  const int first_row = partial_sums.first_row();
  EarlyBias<T> bias(p, first_row, own_column, Sums::kRowsApart);
  wait_for_previous_launches();
  launch_dependents();
  bias.load(p, first_row, own_column);

  typename G::Mat1 mat1(p.mat1, p.mat1_stride, p.M, p.K, first * G::kDepth);
  const auto copy = [&](int slot, int stage) {
    if (stage < count) {
      uint4* to = shared + slot * G::kStageVectors;
      weight.copy(to);
      mat1.copy(to + W::kBytes / 16);
    }
    commit_async_copies();  // also where there is nothing: groups are counted
  };
#pragma unroll 1
  for (int stage = 0; stage < G::kSlots - 1; ++stage) {
    copy(stage, stage);
  }
  float sum[rows / 8][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < count; ++stage) {
    wait_async_copies<G::kSlots - 2>();
    __syncthreads();  // this stage has arrived for all, and all are done with the one before
    copy(slot == 0 ? G::kSlots - 1 : slot - 1, stage + G::kSlots - 1);
    const uint4* tile = shared + slot * G::kStageVectors;
    const uint4* mat1_tile = tile + W::kBytes / 16;
    uint32_t words[few_rows::kStageSteps][W::kWords];
#pragma unroll
    for (int step = 0; step < few_rows::kStageSteps; ++step) {
      weight.load(words[step], tile, step);
    }
    const auto load_mat1 = [&](uint32_t (&bits)[4], int step, int octet) {
      mat1.load(bits, mat1_tile, depth_group, step, octet);
    };
    multiply_accumulate<T, W, rows, few_rows::kStageSteps, alone ? 4 : 2>(sum, words, load_mat1);
    slot = slot == G::kSlots - 1 ? 0 : slot + 1;
  }

  wait_async_copies<0>();
  __syncthreads();  // the partial sums take the place of the stages
  float* partial = dynamic_shared<float>();
#pragma unroll
  for (int octet = 0; octet < rows / 8; ++octet) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = octet * 8 + lane % 4 * 2 + i % 2;
      const int n = group * W::kWarpColumns + W::column_of(lane / 4 + i / 2 * 8);
      partial[(depth_group * rows + m) * G::kPartialStride + n] = sum[octet][i];
    }
  }
  const int row_end = partial_sums.row_end();
  float result[Sums::kSums];
  partial_sums.add_up(result, partial, args.of_block_reciprocal);
  if constexpr (std::is_same_v<T, float>) {
    dot_again<transposed, vectors, Sums::kRowsApart>(result, p, first_row, row_end, own_column);
  }
#pragma unroll
  for (float& value : result) {
    value *= p.alpha;
  }
  bias.add_to(result, p, first_row, own_column, Sums::kRowsApart, row_end);
  activate<T>(result, p.epilogue);
  T* out = static_cast<T*>(p.out) + first_row * p.out_stride + own_column;
#pragma unroll
  for (int i = 0; i < Sums::kSums; ++i) {
    if (first_row + i * Sums::kRowsApart < row_end && own_column < p.N) {
      *out = from_op<T>(result[i]);
    }
    out += Sums::kRowsApart * p.out_stride;
  }
}

// ---- launch ------------------------------------------------------------------------------------------

thread_local LastLaunch last_launch;  // of all these kernels, and those of gemv.cuh

template <typename T, bool transposed, int rows, int groups, bool vectors = true, bool alone = false>
cudaError_t launch_tiles(const LinearParams& p, const Plan& plan, cudaStream_t stream) {
  using G = Geometry<T, transposed, rows, groups, vectors, alone>;
  const auto kernel = linear_kernel<T, transposed, rows, groups, vectors, alone>;
  // No L1 beside the shared memory, or the second block may not find room.
  static KernelAttributes attributes;
  const cudaError_t error = attributes.allow(kernel, /*large_clusters=*/false, /*prefer_smem=*/true);
  if (error != cudaSuccess) {
    return error;
  }
  const int of_block = elements_of_block(p.M * G::kColumns, plan.splits);
  const Arguments args{p,
                       plan.splits,
                       ceil_div(p.K, G::kDepth),
                       plan.prefetched,
                       of_block,
                       1.0f / static_cast<float>(of_block)};
  static_assert(std::is_trivially_copyable_v<Arguments>, "kernel arguments are copied as bytes");
  const LaunchShape shape{int64_t{ceil_div(p.N, G::kColumns)} * plan.splits, kThreads, G::kBytes,
                          plan.splits};
  return last_launch.launch(
      stream, [&](bool overlap) { return launch_kernel(kernel, shape, overlap, args, stream); });
}

template <typename T, bool transposed, int rows>
cudaError_t launch_rows(const LinearParams& p, const Plan& plan, cudaStream_t stream) {
  if (!p.vectors) {
    return plan.groups == 2 && !plan.alone ? launch_tiles<T, transposed, rows, 2, false>(p, plan, stream)
                                           : cudaErrorInvalidValue;
  }
  switch (plan.groups) {
    case 4:
      return launch_tiles<T, transposed, rows, 4>(p, plan, stream);
    case 2:
      if constexpr (few_rows::has_alone(std::is_same_v<T, float>, rows, 2, true)) {
        if (plan.alone) {
          return launch_tiles<T, transposed, rows, 2, true, true>(p, plan, stream);
        }
      }
      return launch_tiles<T, transposed, rows, 2>(p, plan, stream);
    default:
      if constexpr (few_rows::is_tile(rows, 1, true)) {
        return launch_tiles<T, transposed, rows, 1>(p, plan, stream);
      }
      return cudaErrorInvalidValue;
  }
}

template <typename T, bool transposed>
cudaError_t launch_layout(const LinearParams& p, const Plan& plan, cudaStream_t stream) {
  switch (plan.rows) {
    case 8:
      return launch_rows<T, transposed, 8>(p, plan, stream);
    case 16:
      return launch_rows<T, transposed, 16>(p, plan, stream);
    case 32:
      return launch_rows<T, transposed, 32>(p, plan, stream);
    default:
      return launch_rows<T, transposed, 64>(p, plan, stream);
  }
}

template <typename T>
cudaError_t launch_dtype(const LinearParams& p, const Plan& plan, cudaStream_t stream) {
  return p.mat2_is_transposed ? launch_layout<T, true>(p, plan, stream)
                              : launch_layout<T, false>(p, plan, stream);
}

}  // namespace

bool is_behind_another_kernel(cudaStream_t stream) {
  return last_launch.is_behind_another(stream);
}

cudaError_t launch_few_rows(const LinearParams& params, const gemv::Plan& plan, cudaStream_t stream) {
  return last_launch.launch(stream, [&](bool overlap) { return launch_gemv(params, plan, overlap, stream); });
}

cudaError_t launch_few_rows(const LinearParams& params, const Plan& plan, cudaStream_t stream) {
  switch (params.dtype) {
    case Dtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(params, plan, stream);
    case Dtype::Half:
      return launch_dtype<__half>(params, plan, stream);
    default:
      return launch_dtype<float>(params, plan, stream);
  }
}

}  // namespace aten_ext::cuda
