// What the kernels of a step's gates share: forward (thnn_fused_gru_cell.cu, thnn_fused_lstm_cell.cu) and
// backward (gates_backward.cuh).
#pragma once

#include <cmath>

#include "device/vector.cuh"

namespace aten_ext::cuda {

constexpr int kThreads = 128;  // small blocks: most calls have few elements, and should reach many SMs

template <typename Op>
__device__ __forceinline__ Op sigmoid(Op x) {
  return Op(1) / (Op(1) + exp(-x));
}

// kCount neighbouring elements, loaded and stored by one instruction.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T of[kCount];
};

// As arithmetic wants them.
template <typename Op, int kCount, typename T>
__device__ __forceinline__ void load(Op (&to)[kCount], const T* from) {
  const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    to[i] = static_cast<Op>(to_op(pack.of[i]));
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void store(T* to, const MathType<T> (&from)[kCount]) {
  Pack<T, kCount> pack;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    pack.of[i] = from_op<T>(from[i]);
  }
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

}  // namespace aten_ext::cuda
