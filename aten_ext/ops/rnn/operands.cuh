// What tensor cores multiply in a recurrence: 16-bit elements as they are, fp32 as TF32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/mma.cuh"
#include "device/vector.cuh"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

struct Tf32 {
  float value;
};

// Tensor: dtype of the tensors. Operand: what shared memory holds of h.
template <typename Element>
struct RnnMma {
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
struct RnnMma<Tf32> {
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

// Columns of a row of which a pair of mma makes products: 32 of 16 bits, 16 in TF32.
template <typename Element>
constexpr int kMmaPairColumns = kMmaPairBytes / static_cast<int>(sizeof(typename RnnMma<Element>::Operand));

// 16 bytes as they lie in memory to operands, in place: fp32 becomes TF32. Nothing to do in 16 bits.
template <typename Element>
__device__ __forceinline__ void to_operands(uint4& bits) {
  using Mma = RnnMma<Element>;
  if constexpr (!std::is_same_v<typename Mma::Operand, typename Mma::Tensor>) {
    float4 values;
    memcpy(&values, &bits, sizeof(bits));
    bits = {Mma::to_operand(values.x), Mma::to_operand(values.y), Mma::to_operand(values.z),
            Mma::to_operand(values.w)};
  }
}

// 16 bytes of a row of W_hh from `column`, as operands, zero beyond the last column or where there is no row.
template <typename Element>
__device__ __forceinline__ uint4 load_operands(const typename RnnMma<Element>::Tensor* row, int column,
                                               int hidden, bool vectors) {
  using Operand = typename RnnMma<Element>::Operand;
  using Tensor = typename RnnMma<Element>::Tensor;
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
      operands[i] = RnnMma<Element>::to_operand(to_op(values[i]));
    }
  }
  uint4 bits;
  memcpy(&bits, &operands, sizeof(bits));
  return bits;
}

}  // namespace aten_ext::cuda
