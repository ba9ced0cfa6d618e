// Dropout between two layers, as fast as memory: a thread has the eight elements of a byte of bits.
#include "ops/rnn/training/dropout.h"

#include "core/math.h"
#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 256;

struct Group {
  int64_t first;
  int count;  // 0: nothing to do
};

__device__ __forceinline__ Group group_of_thread(int64_t count) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kKeptOfByte;
  const int64_t left = count - first;
  return {first, left < kKeptOfByte ? static_cast<int>(left < 0 ? 0 : left) : kKeptOfByte};
}

// `packs`: whole groups lie in one piece that an instruction or two may load.
template <typename T>
__device__ __forceinline__ void load_group(float (&to)[kKeptOfByte], const T* from, int count, bool packs) {
  if (packs && count == kKeptOfByte) {
    load_pack(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kKeptOfByte; ++i) {
    to[i] = i < count ? to_op(from[i]) : 0.0f;
  }
}

template <typename T>
__device__ __forceinline__ void store_group(T* to, const float (&from)[kKeptOfByte], int count, bool packs) {
  if (packs && count == kKeptOfByte) {
    store_pack(to, from);
    return;
  }
#pragma unroll
  for (int i = 0; i < kKeptOfByte; ++i) {
    if (i < count) {
      to[i] = from_op<T>(from[i]);
    }
  }
}

__device__ __forceinline__ float dropped(float x, unsigned kept, int i, float scale) {
  return (kept >> i & 1u) != 0 ? x * scale : 0.0f;
}

template <typename T>
__device__ __forceinline__ void drop(const Drop& p, const Group& group, unsigned kept, bool packs) {
  float x[kKeptOfByte];
  load_group(x, static_cast<const T*>(p.from) + group.first, group.count, packs);
#pragma unroll
  for (int i = 0; i < kKeptOfByte; ++i) {
    x[i] = dropped(x[i], kept, i, p.scale);
  }
  store_group(static_cast<T*>(p.to) + group.first, x, group.count, packs);
}

template <typename T>
__global__ __launch_bounds__(kThreads) void drop_kernel(const __grid_constant__ Drop p, const uint8_t* kept,
                                                        bool packs) {
  const Group group = group_of_thread(p.count);
  if (group.count > 0) {
    drop<T>(p, group, kept[group.first / kKeptOfByte], packs);
  }
}

template <typename T>
__global__ __launch_bounds__(kThreads) void first_drop_kernel(const __grid_constant__ Drop p,
                                                              const __half* left, uint8_t* kept, bool packs) {
  const Group group = group_of_thread(p.count);
  if (group.count == 0) {
    return;
  }
  float numbers[kKeptOfByte];
  load_pack(numbers, left + group.first);
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kKeptOfByte; ++i) {
    bits |= i < group.count && numbers[i] > 0.0f ? 1u << i : 0u;
  }
  kept[group.first / kKeptOfByte] = static_cast<uint8_t>(bits);
  drop<T>(p, group, bits, packs);
}

template <typename T>
__global__ __launch_bounds__(kThreads) void drop_sum_kernel(const __grid_constant__ DropSum p, bool packs) {
  const Group group = group_of_thread(p.count);
  if (group.count == 0) {
    return;
  }
  float sum[kKeptOfByte] = {};
#pragma unroll
  for (int direction = 0; direction < 2; ++direction) {
    float x[kKeptOfByte];
    load_group(x, p.from[direction] + group.first, group.count, packs);
    const unsigned kept = p.kept[direction][group.first / kKeptOfByte];
#pragma unroll
    for (int i = 0; i < kKeptOfByte; ++i) {
      sum[i] += dropped(x[i], kept, i, p.scale);
    }
  }
  store_group(static_cast<T*>(p.to) + group.first, sum, group.count, packs);
}

// Whether groups of elements of so many bytes lie in one piece each.
bool lie_in_packs(uintptr_t addresses, int bytes) {
  return addresses % (kKeptOfByte * bytes) == 0;
}

cudaLaunchConfig_t config_of(int64_t count, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(count, int64_t{kThreads} * kKeptOfByte)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return config;
}

}  // namespace

cudaError_t launch_drop(const Drop& p, const uint8_t* kept, cudaStream_t stream) {
  const cudaLaunchConfig_t config = config_of(p.count, stream);
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    return cudaLaunchKernelEx(&config, drop_kernel<T>, p, kept,
                              lie_in_packs(bits_of(p.from) | bits_of(p.to), sizeof(T)));
  });
}

cudaError_t launch_first_drop(const Drop& p, const void* left, uint8_t* kept, cudaStream_t stream) {
  const cudaLaunchConfig_t config = config_of(p.count, stream);
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    return cudaLaunchKernelEx(&config, first_drop_kernel<T>, p, static_cast<const __half*>(left), kept,
                              lie_in_packs(bits_of(p.from) | bits_of(p.to), sizeof(T)));
  });
}

cudaError_t launch_drop_sum(const DropSum& p, cudaStream_t stream) {
  const cudaLaunchConfig_t config = config_of(p.count, stream);
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    return cudaLaunchKernelEx(
        &config, drop_sum_kernel<T>, p,
        lie_in_packs(bits_of(p.from[0]) | bits_of(p.from[1]) | bits_of(p.to), sizeof(float)));
  });
}

}  // namespace aten_ext::cuda
