// Vectors of 16 bytes, and the dtype that arithmetic is done in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

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
__device__ __forceinline__ T from_op(typename OpMath<T>::type x);
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

// 16 bytes of T, loaded and stored by one instruction.
template <typename T>
struct alignas(16) Vector {
  static constexpr int kSize = 16 / sizeof(T);
  T value[kSize];
};
static_assert(sizeof(Vector<float>) == 16 && sizeof(Vector<__nv_bfloat16>) == 16, "one vector, 16 bytes");

__device__ __forceinline__ bool is_vector_aligned(const void* pointer) {
  return (reinterpret_cast<uintptr_t>(pointer) & 15) == 0;
}

// Memory that is touched once in a pass larger than the cache: do not push out of it what others may want.
template <typename T>
__device__ __forceinline__ Vector<T> load_streaming(const T* from) {
  const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
  Vector<T> vector;
  *reinterpret_cast<uint4*>(&vector) = bits;
  return vector;
}

}  // namespace aten_ext::cuda
