// Neighbouring elements that one instruction loads or stores, and launches over them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.h"
#include "device/vector.cuh"

namespace aten_ext::cuda {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T of[kCount];
};

// In fp32, whatever the dtype.
template <int kCount, typename T>
__device__ __forceinline__ void load_pack(float (&to)[kCount], const T* from) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    to[i] = to_op(pack.of[i]);
  }
}

template <int kCount, typename T>
__device__ __forceinline__ void store_pack(T* to, const float (&from)[kCount]) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    pack.of[i] = from_op<T>(from[i]);
  }
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// Units of a row that a thread may have.
constexpr int kMostUnits = 4;

// Whether four units lie in one piece of memory everywhere: `bits` are all addresses, in elements of `bytes`.
inline bool lies_in_fours(uintptr_t bits, int64_t hidden, int bytes) {
  return hidden % kMostUnits == 0 && bits % (kMostUnits * bytes) == 0;
}

inline uintptr_t bits_of(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

// Calls launch<T>() with the dtype of the tensors.
template <typename Launch>
cudaError_t with_dtype(Dtype dtype, const Launch& launch) {
  switch (dtype) {
    case Dtype::Float:
      return launch(float{});
    case Dtype::Half:
      return launch(__half{});
    case Dtype::BFloat16:
      return launch(__nv_bfloat16{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace aten_ext::cuda
