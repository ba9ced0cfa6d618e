// Vectors of 16 bytes, and the dtype that arithmetic is done in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace aten_ext::cuda {

// fp16 and bf16 compute in fp32; the others in themselves. The conversions are those of c10::Half and
// c10::BFloat16: to nearest, ties to even.
template <typename T>
struct OpMath {
  using type = T;
};
template <>
struct OpMath<__half> {
  using type = float;
};
template <>
struct OpMath<__nv_bfloat16> {
  using type = float;
};

template <typename T>
using MathType = typename OpMath<T>::type;

__device__ __forceinline__ float to_op(float x) {
  return x;
}
__device__ __forceinline__ double to_op(double x) {
  return x;
}
__device__ __forceinline__ float to_op(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ float to_op(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

template <typename T>
__device__ __forceinline__ T from_op(MathType<T> x);
template <>
__device__ __forceinline__ float from_op<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ double from_op<double>(double x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_op<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_op<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// How many T are in 16 bytes, the most that one instruction loads or stores.
template <typename T>
struct Vector {
  static constexpr int kSize = 16 / sizeof(T);
};

__device__ __forceinline__ bool is_vector_aligned(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 15) == 0;
}

// Whether kCount elements from there are one load of load_elements().
template <int kCount, typename T>
__device__ __forceinline__ bool are_aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % (kCount * sizeof(T)) == 0;
}

// The elements of a vector, in the dtype that arithmetic is done in.
template <typename T>
__device__ __forceinline__ void unpack(MathType<T> (&to)[Vector<T>::kSize], const uint4& bits) {
  T elements[Vector<T>::kSize];
  memcpy(&elements, &bits, sizeof(bits));
#pragma unroll
  for (int i = 0; i < Vector<T>::kSize; ++i) {
    to[i] = to_op(elements[i]);
  }
}

// 16 bytes that this multiprocessor reads once: they leave the L1 to others, and stay in the L2. No load of
// what is constant (.nc): a launch may have begun before the one that writes them has ended.
__device__ __forceinline__ uint4 load_past_l1(const uint4* from) {
#ifdef __CUDA_ARCH__
  uint4 bits;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from));
  return bits;
#else
  return *from;
#endif
}

template <typename T>
__device__ __forceinline__ void load_vector(T (&to)[Vector<T>::kSize], const T* from) {
  const uint4 bits = *reinterpret_cast<const uint4*>(from);
  memcpy(&to, &bits, sizeof(bits));
}

// kCount elements side by side in one load: `from` is aligned to all of their bytes, 16 at most.
template <int kCount, typename T>
__device__ __forceinline__ void load_elements(T (&to)[kCount], const T* from) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static_assert(kCount == 1 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kCount == 1) {
    to[0] = *from;
  } else if constexpr (kBytes == 4) {
    const auto bits = *reinterpret_cast<const uint32_t*>(from);
    memcpy(&to, &bits, sizeof(bits));
  } else if constexpr (kBytes == 8) {
    const auto bits = *reinterpret_cast<const uint2*>(from);
    memcpy(&to, &bits, sizeof(bits));
  } else {
    load_vector(to, from);
  }
}

template <typename T>
__device__ __forceinline__ void store_vector(T* to, const T (&from)[Vector<T>::kSize]) {
  uint4 bits;
  memcpy(&bits, &from, sizeof(bits));
  *reinterpret_cast<uint4*>(to) = bits;
}

// kCount elements side by side in one store of 8 or 16 bytes, to which `to` is aligned.
template <int kCount, typename T>
__device__ __forceinline__ void store_elements(T* to, const T (&from)[kCount]) {
  constexpr int kBytes = kCount * static_cast<int>(sizeof(T));
  static_assert(kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 8) {
    uint2 bits;
    memcpy(&bits, &from, sizeof(bits));
    *reinterpret_cast<uint2*>(to) = bits;
  } else {
    store_vector(to, from);
  }
}

}  // namespace aten_ext::cuda
