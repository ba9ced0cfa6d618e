// How a coefficient lies in memory that a forward has saved it in: in fp32 of fp32 tensors, else in 16 bits.
//
// Those are fp16 whatever the tensors' dtype, which has three bits more than bf16: but for the one that is a
// state times what is at most 1/4, and so as large as the tensors' dtype lets a state be.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/vector.cuh"

namespace aten_ext::cuda {

template <typename Tensor>
using SavedBits = std::conditional_t<sizeof(Tensor) == sizeof(float), uint32_t, uint16_t>;

namespace saved_detail {

template <typename T, typename Bits>
__device__ __forceinline__ Bits bits_of(float value) {
  const T rounded = from_op<T>(value);
  Bits bits;
  memcpy(&bits, &rounded, sizeof(bits));
  return bits;
}
template <typename T, typename Bits>
__device__ __forceinline__ float value_of(Bits bits) {
  T value;
  memcpy(&value, &bits, sizeof(value));
  return to_op(value);
}

}  // namespace saved_detail

// Sizes: of the cell's coefficients.
template <typename Sizes, typename Tensor>
__device__ __forceinline__ SavedBits<Tensor> to_saved(int coefficient, float value) {
  using Bits = SavedBits<Tensor>;
  if constexpr (sizeof(Tensor) == sizeof(float)) {
    return saved_detail::bits_of<float, Bits>(value);
  } else {
    return coefficient == Sizes::kOfState ? saved_detail::bits_of<Tensor, Bits>(value)
                                          : saved_detail::bits_of<__half, Bits>(value);
  }
}

template <typename Sizes, typename Tensor>
__device__ __forceinline__ float from_saved(int coefficient, SavedBits<Tensor> bits) {
  if constexpr (sizeof(Tensor) == sizeof(float)) {
    return saved_detail::value_of<float>(bits);
  } else {
    return coefficient == Sizes::kOfState ? saved_detail::value_of<Tensor>(bits)
                                          : saved_detail::value_of<__half>(bits);
  }
}

}  // namespace aten_ext::cuda
