// Linear layers with few rows: out = activation(beta * bias + alpha * mat1 * mat2).
//
//   mat1 [M, K], M from 1 to 64; mat2 [K, N], in memory [N, K] (nn.Linear's weight, transposed by a view) or
//   [K, N]; bias broadcast to [M, N]; activation: none, ReLU, or GELU in its tanh form,
//   0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415).
//
// Everything is multiplied on tensor cores and summed in fp32. fp32 is not TF32: six products of bf16 parts
// are as accurate as fused multiply-adds and twice as fast (linear_product.cuh). The result is rounded once,
// at the end.
//
// Bytes: K N of the weight, once, and little else; FLOPs: 2 M K N. On an H200, where a copy reaches 4.2 TB/s
// and fused multiply-adds 51 TFLOP/s; us on the GPU, in CUDA graphs, weights read from memory
// (scripts/tune_linear.cu); upstream of the same day:
//
//                           bytes   upstream                 kernel
//   fp32, rows                      8    16    32    64      8     16    32    64
//   4096 x 4096             16.0    46    96   101    87     18.7  20.8  31.3  50.6
//   K = 4096, N = 11008     43.0   110   131   156   238     48.6  57.2  92.5   151
//   K = 1280, N = 8000       9.8    31    51    45    58     12.5  13.9  20.5  34.7
//   K = 768,  N = 3072       2.3    10    16    34    27      4.6   5.4   7.7  11.0
//   bf16, rows                      1     8    16    32      1     8     16    32
//   4096 x 4096              8.0   13.8  13.7  14.1  11.9     9.9   9.9  10.4  11.4
//   K = 768,  N = 3072       1.1    5.0   5.0   5.1   5.1     2.5   2.5   2.8   3.3
//
// What limits: up to 8 rows the memory, at 3.5 to 3.8 TB/s of weights; then, in fp32, the instructions that
// part numbers (each 32 k of 64 rows and 16 columns cost 96 products and some 600 others), and from 32 rows
// on the L2, which every tile of columns reads mat1 from again. A small layer is latency, one after the
// other: the launch (an empty kernel in a graph: 0.6 us), the memory's answer, the sums of a block's warps. A
// kernel of the same launch that only copies the weight of 768 x 3072 to shared memory takes 2.1 us in 16
// bits and 3.3 in fp32: what is above it here is mat1, products and sums. So 16 bits come to 2.5 us up to 8
// rows, and with 16, 32 and 64 to 2.75, 3.3 and 4.3. Shapes where upstream is faster stay with it
// (linear_rule.h).
//
// Tried for these and slower: Hopper's products of four warps (wgmma) of 16-byte asynchronous copies, with a
// fence and a barrier for each 64 k (bf16, 32 and 64 rows: 4.5 and 5.0 us; fp32, of split numbers, 15 us and
// more); mat1 read once for a cluster of 2, 4 or 8 blocks (multicast; 32 rows: 5.0, 4.5, 4.0 us); letting
// the next launch begin before this one's wait (one row: 3.4 us and not 2.6).
//
// Tiles of weight and mat1 come in 16-byte asynchronous copies, whole cache lines at a time, three stages
// ahead. A weight straight from memory to registers, without shared memory, was slower (23 us for 19, fp32,
// 4096 x 4096): such loads wait in the L1, which is small beside that much shared memory, and half lines cost
// as much as whole.
//
// A tile of 32 columns of N = 4096 makes 128 blocks for 132 multiprocessors of two each. So K is split: among
// the warps of a block, which take turns with the k of each stage, and among the blocks of a cluster (sm_90).
// Both add up in shared memory in a fixed order (linear_reduce.cuh), without atomics, workspace or a second
// launch.
//
// A launch may begin while the one before it ends (programmatic dependent launch), and ask for what it will
// read: 2.5 us and not 2.9 for 768 x 3072, bf16, one row, and the bias before the products instead of after
// them, 2.5 us and not 3.2. That is safe with any kernel before and after. Before: nothing of
// memory is read or written until wait_for_previous_launches(), which returns when all launches before have
// ended and their writes are seen; operands are only asked to come to the L2, through which all writes go.
// After: a launch that did not ask to overlap waits for the end of this one; one that did may begin when all
// blocks of this one have passed that wait, so that everything before this one has ended by then, and it must
// wait itself before it reads what this one writes.
#include "cuda/linear.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/cluster.cuh"
#include "cuda/device/linear_product.cuh"
#include "cuda/device/linear_reduce.cuh"
#include "cuda/device/linear_weight.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/sync.cuh"
#include "cuda/device/vector.cuh"
#include "cuda/linear_epilogue.cuh"
#include "cuda/linear_plan.cuh"

namespace aten_ext::cuda {
namespace {

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
template <typename T, bool transposed, int rows, int groups, bool alone>
struct Geometry {
  static constexpr int kDepthGroups = kWarps / groups;
  using Weight = LinearWeight<T, transposed, groups, kDepthGroups, kStageSteps>;
  static constexpr int kColumns = Weight::kColumns;
  static constexpr int kDepth = Weight::kDepth;
  // Rows of mat1 in shared memory. The halves of each 128 bytes change places in every other row, so that the
  // lanes that read at once (four vectors of two rows) find different banks.
  static constexpr int kVector = Vector<T>::kSize;
  static constexpr int kVectors = kDepth / kVector;
  static constexpr int kRowsAtOnce = kThreads / kVectors;
  // A stage: a tile of the weight, and of mat1.
  static constexpr int kStageVectors = Weight::kBytes / 16 + rows * kVectors;
  static constexpr int kPartialStride = kColumns + 4;
  static constexpr int kPartialBytes = kDepthGroups * rows * kPartialStride * 4;
  using Sums = PartialSums<kThreads, kDepthGroups, rows, kColumns, kPartialStride>;
  static_assert(Sums::kMostBlocks == kMostSplits);
  static constexpr int kMostBytes = alone ? kMostSharedBytesAlone : kMostSharedBytes;
  static constexpr int kSlots =
      std::min((kMostBytes - Sums::kSharedBytes) / (kStageVectors * 16), kMostSlots);
  static constexpr int kRingBytes = std::max(kSlots * kStageVectors * 16, kPartialBytes);
  static constexpr int kBytes = kRingBytes + Sums::kSharedBytes;
  static_assert(kRowsAtOnce % 2 == 0);
  static_assert(kSlots >= 2 && kBytes <= kMostBytes);
};

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

// fp32: forms those of a thread's sums again that are not finite. Whole warps.
template <bool transposed, int rows, int sums>
__device__ __forceinline__ void dot_again(float (&result)[sums], const LinearParams& p, int first_row,
                                          int row_end, int n) {
  uint32_t wrong = 0;  // a bit for each
#pragma unroll
  for (int i = 0; i < sums; ++i) {
    // Not below the largest float: an infinity, a NaN, or a sum that did not fit.
    const bool exists = first_row + i * rows < row_end && n < p.N;
    wrong |= exists && !(fabsf(result[i]) <= 3.402823466e38f) ? 1u << i : 0u;
  }
  if (!__any_sync(0xffffffff, wrong != 0)) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
  for (int i = 0; i < sums; ++i) {
    const int m = first_row + i * rows;
    unsigned again = __ballot_sync(0xffffffff, (wrong >> i & 1) != 0);
    while (again != 0) {
      const int which = __ffs(static_cast<int>(again)) - 1;
      const float dot =
          dot_of_warp<transposed>(p, __shfl_sync(0xffffffff, m, which), __shfl_sync(0xffffffff, n, which));
#pragma unroll
      for (int j = 0; j < sums; ++j) {  // an index that is not known would move them to memory
        result[j] = lane == which && i == j ? dot : result[j];
      }
      again &= again - 1;
    }
  }
}

// Grid: for each tile of columns a cluster of `splits` blocks (or one block), each with its part of K.
template <typename T, bool transposed, int rows, int groups, bool alone>
__global__ __launch_bounds__(kThreads, alone ? 1 : kBlocksPerSM) void linear_kernel(
    const __grid_constant__ Arguments args) {
  using G = Geometry<T, transposed, rows, groups, alone>;
  using W = typename G::Weight;
  const LinearParams& p = args.p;
  uint4* shared = dynamic_shared<uint4>();
  const int rank = args.splits == 1 ? 0 : static_cast<int>(cluster_rank());
  const typename G::Sums partial_sums(dynamic_shared<char>() + G::kRingBytes, p.M, args.splits, args.of_block,
                                      rank);
  partial_sums.expect();
  const int first_column = static_cast<int>(blockIdx.x) / args.splits * G::kColumns;
  const int first = args.stages * rank / args.splits;
  const int count = args.stages * (rank + 1) / args.splits - first;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int group = thread / 32 / G::kDepthGroups;
  const int depth_group = thread / 32 % G::kDepthGroups;

  // What does not depend on the launch before comes to the L2 while that ends.
  W weight(p.mat2, p.mat2_stride, p.N, p.K, first_column, first * G::kDepth);
  W::prefetch(p.mat2, p.mat2_stride, p.N, p.K, first_column, first * G::kDepth, min(count, args.prefetched));
  for (int row = static_cast<int>(blockIdx.x); row < p.M && thread == kThreads - 1;
       row += static_cast<int>(gridDim.x)) {
    prefetch_bulk_to_l2(static_cast<const T*>(p.mat1) + row * p.mat1_stride,
                        p.K * static_cast<int>(sizeof(T)));
  }
  const int own_column = first_column + partial_sums.column();
  const int first_row = partial_sums.first_row();
  EarlyBias<T> bias(p, first_row, own_column, G::Sums::kRowsApart);
  wait_for_previous_launches();
  launch_dependents();
  bias.load(p, first_row, own_column);

  // This thread's first vector of mat1 in the next stage.
  const int x_row = thread / G::kVectors;
  const int x_column = thread % G::kVectors * G::kVector;
  const T* x_from = static_cast<const T*>(p.mat1) + x_row * p.mat1_stride + first * G::kDepth + x_column;
  int k_left = p.K - first * G::kDepth - x_column;
  const auto copy = [&](int slot, int stage) {
    if (stage < count) {
      uint4* to = shared + slot * G::kStageVectors;
      weight.copy(to);
      to += W::kBytes / 16 + x_row * G::kVectors + (thread % G::kVectors ^ x_row % 2 * 4);
      const T* from = x_from;
#pragma unroll
      for (int i = 0; i < rows; i += G::kRowsAtOnce) {
        if (x_row + i < p.M) {  // results of other rows are nobody's
          copy_async_16_or_zero(to + i * G::kVectors, from, k_left > 0);
        }
        from += G::kRowsAtOnce * p.mat1_stride;
      }
      x_from += G::kDepth;
      k_left -= G::kDepth;
    }
    commit_async_copies();  // also where there is nothing: groups are counted
  };
#pragma unroll 1
  for (int stage = 0; stage < G::kSlots - 1; ++stage) {
    copy(stage, stage);
  }
  float sum[rows / 8][4] = {};
  const int x_at = lane / 4 * G::kDepth + depth_group * W::kWarpDepth + lane % 4 * W::kLaneDepth;
  int slot = 0;
#pragma unroll 1
  for (int stage = 0; stage < count; ++stage) {
    wait_async_copies<G::kSlots - 2>();
    __syncthreads();  // this stage has arrived for all, and all are done with the one before
    copy(slot == 0 ? G::kSlots - 1 : slot - 1, stage + G::kSlots - 1);
    const uint4* tile = shared + slot * G::kStageVectors;
    const T* x_tile = reinterpret_cast<const T*>(tile + W::kBytes / 16) + x_at;
    uint32_t words[kStageSteps][W::kWords];
    const T* x[kStageSteps];
#pragma unroll
    for (int step = 0; step < kStageSteps; ++step) {
      weight.load(words[step], tile, step);
      x[step] = x_tile + (step ^ lane / 4 % 2) * W::kStepDepth;
    }
    multiply_accumulate<T, W, rows, kStageSteps, G::kDepth, alone ? 4 : 2>(sum, words, x);
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
  float result[G::Sums::kSums];
  partial_sums.add_up(result, partial, args.of_block_reciprocal);
  if constexpr (std::is_same_v<T, float>) {
    dot_again<transposed, G::Sums::kRowsApart>(result, p, first_row, row_end, own_column);
  }
#pragma unroll
  for (float& value : result) {
    value *= p.alpha;
  }
  bias.add_to(result, p, first_row, own_column, G::Sums::kRowsApart, row_end);
  activate(result, p.activation);
  T* out = static_cast<T*>(p.out) + first_row * p.out_stride + own_column;
#pragma unroll
  for (int i = 0; i < G::Sums::kSums; ++i) {
    if (first_row + i * G::Sums::kRowsApart < row_end && own_column < p.N) {
      *out = from_op<T>(result[i]);
    }
    out += G::Sums::kRowsApart * p.out_stride;
  }
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename T, bool transposed, int rows, int groups, bool alone = false>
cudaError_t launch_plan(const LinearParams& p, Plan plan, cudaStream_t stream) {
  using G = Geometry<T, transposed, rows, groups, alone>;
  const auto kernel = linear_kernel<T, transposed, rows, groups, alone>;
  // More than 48 KB have to be asked for, once on each device.
  static std::atomic<uint64_t> asked{0};
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (error == cudaSuccess && (device >= 64 || (asked.load(std::memory_order_relaxed) & bit) == 0)) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, G::kBytes);
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
  const int splits = plan.splits;
  const int of_block = elements_of_block(p.M * G::kColumns, splits);
  const Arguments args{
      p, splits, divide_up(p.K, G::kDepth), plan.prefetched, of_block, 1.0f / static_cast<float>(of_block)};
  static_assert(std::is_trivially_copyable_v<Arguments>, "kernel arguments are copied as bytes");
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(splits);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(divide_up(p.N, G::kColumns) * splits));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = G::kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = splits > 1 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

template <typename T, bool transposed, int rows>
cudaError_t launch_rows(const LinearParams& p, Plan plan, cudaStream_t stream) {
  switch (plan.groups) {
    case 4:
      return launch_plan<T, transposed, rows, 4>(p, plan, stream);
    case 2:
      if constexpr (has_alone(std::is_same_v<T, float>, rows, 2)) {
        if (plan.alone) {
          return launch_plan<T, transposed, rows, 2, true>(p, plan, stream);
        }
      }
      return launch_plan<T, transposed, rows, 2>(p, plan, stream);
    default:
      if constexpr (is_tile(rows, 1)) {
        return launch_plan<T, transposed, rows, 1>(p, plan, stream);
      }
      return cudaErrorInvalidValue;
  }
}

template <typename T, bool transposed>
cudaError_t launch_layout(const LinearParams& p, Plan plan, cudaStream_t stream) {
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
cudaError_t launch_dtype(const LinearParams& p, Plan plan, cudaStream_t stream) {
  return p.mat2_is_transposed ? launch_layout<T, true>(p, plan, stream)
                              : launch_layout<T, false>(p, plan, stream);
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
  const Layer layer{
      params.M,       params.N, params.K, params.dtype == LinearDtype::Float, params.mat2_is_transposed,
      multiprocessors};
  return launch_with(params, choose_plan(layer), stream);
}

}  // namespace aten_ext::cuda
