// What tensor cores multiply in a GRU layer's recurrence: 16-bit elements as they are, fp32 as TF32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/device/mma.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

struct Tf32 {
  float value;
};

// Tensor: dtype of the tensors. Operand: what shared memory holds of h.
template <typename Element>
struct GruMma {
  using Tensor = Element;
  using Operand = Element;
  static __device__ __forceinline__ Operand to_operand(float x) {
    return from_op<Element>(x);
  }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4],
                                                      const uint32_t (&b)[2]) {
    mma_m16n8k16<Element>(d, a, b);
  }
};
template <>
struct GruMma<Tf32> {
  using Tensor = float;
  using Operand = uint32_t;
  static __device__ __forceinline__ Operand to_operand(float x) {
    return round_to_tf32(x);
  }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4],
                                                      const uint32_t (&b)[2]) {
    mma_m16n8k8_tf32(d, a, b);
  }
};

// A pair of mma covers 64 bytes of a row: 32 columns of 16 bits, 16 in TF32.
template <typename Element>
constexpr int kMmaPairColumns = 64 / static_cast<int>(sizeof(typename GruMma<Element>::Operand));

// 16 bytes of a row of W_hh from `column`, as operands, zero beyond the last column or where there is no row.
template <typename Element>
__device__ __forceinline__ uint4 gru_load_operands(const typename GruMma<Element>::Tensor* row, int column,
                                                   int hidden, bool vectors) {
  using Operand = typename GruMma<Element>::Operand;
  using Tensor = typename GruMma<Element>::Tensor;
  constexpr int kCount = 16 / sizeof(Operand);
  Tensor values[kCount];
  if (row != nullptr && vectors && column + kCount <= hidden) {
    load_vector(values, row + column);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = row != nullptr && column + i < hidden ? row[column + i] : from_op<Tensor>(0.0f);
    }
  }
  Operand operands[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Operand, Tensor>) {
      operands[i] = values[i];
    } else {
      operands[i] = GruMma<Element>::to_operand(to_op(values[i]));
    }
  }
  uint4 bits;
  memcpy(&bits, &operands, sizeof(bits));
  return bits;
}

}  // namespace aten_ext::cuda
