// One number added to each of many single fp32 numbers, in as few launches as kernel arguments allow.
//
//   x_i += value                                             i in [0, count), each x_i an allocation of its
//   own
//
// An optimizer counts its steps like this. What a call takes is a launch: upstream launches for every 110
// tensors, here one launch holds 4094 addresses, one thread each. docs/kernels/optimizer.md.
#include "ops/optimizer/cuda/foreach_add.h"

#include <algorithm>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kThreads = 128;  // 1000 numbers: 8 blocks, whose reads of the addresses go on side by side

// ---- kernel ------------------------------------------------------------------------------------------

template <int bytes>
struct AddArguments {
  static constexpr int kCapacity =
      (bytes - static_cast<int>(sizeof(float) + sizeof(int))) / static_cast<int>(sizeof(float*));
  float value;
  int count;
  float* numbers[kCapacity];
};

// Grid: one thread for each number.
template <int bytes>
__global__ __launch_bounds__(kThreads) void foreach_add_kernel(
    const __grid_constant__ AddArguments<bytes> args) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i < args.count) {
    *args.numbers[i] += args.value;
  }
}

// ---- launch ------------------------------------------------------------------------------------------

template <int bytes>
Launched launch(const ForeachAddParams& p, cudaStream_t stream) {
  using Args = AddArguments<bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  Args args;
  args.value = p.value;
  LaunchSequence sequence(stream, /*may_overlap=*/false);
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    args.count = static_cast<int>(std::min<int64_t>(p.count - from, Args::kCapacity));
    std::copy_n(p.numbers + from, args.count, args.numbers);
    const int blocks = ceil_div(args.count, kThreads);
    if (const cudaError_t error = sequence.launch(foreach_add_kernel<bytes>, blocks, kThreads, args);
        error != cudaSuccess) {
      return {error, sequence.launches() - 1};
    }
  }
  return {cudaSuccess, sequence.launches()};
}

}  // namespace

Launched launch_foreach_add(const ForeachAddParams& params, cudaStream_t stream) {
  const bool few = params.count <= AddArguments<kSmallArgumentBytes>::kCapacity;
  return few || params.argument_bytes < kLargeArgumentBytes ? launch<kSmallArgumentBytes>(params, stream)
                                                            : launch<kLargeArgumentBytes>(params, stream);
}

}  // namespace aten_ext::cuda
