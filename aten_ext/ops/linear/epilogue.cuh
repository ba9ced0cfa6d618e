// What becomes of a linear layer's sums: bias and activation.
#pragma once

#include <cuda_runtime.h>

#include "device/async_copy.cuh"
#include "device/vector.cuh"
#include "ops/linear/few_rows.h"

namespace aten_ext::cuda {

// The bias of a thread's results, which are all of one column. Asked for before the launches before this one
// have ended and read before the products: after them there would be nothing else to do meanwhile (0.7 us of
// the 3.3 that 768 x 3072 took in bf16).
template <typename T>
class EarlyBias {
 public:
  // The thread's first result is [m, n], the next ones are `rows` further down. A bias that all columns share
  // is asked for by the threads of one: the L2 answers requests of all blocks for one line in turn.
  __device__ __forceinline__ EarlyBias(const LinearParams& p, int m, int n, int rows) {
    if (p.bias != nullptr && m < p.M && n < (p.bias_stride_n == 0 ? 1 : p.N)) {
      prefetch_to_l2(at(p, m, n));
      for (int row = m + rows; p.bias_stride_m != 0 && row < p.M; row += rows) {
        prefetch_to_l2(at(p, row, n));
      }
    }
  }

  // Of the same m and n.
  __device__ __forceinline__ void load(const LinearParams& p, int m, int n) {
    if (p.bias != nullptr && m < p.M && n < p.N) {
      first_ = *at(p, m, n);
    }
  }

  // Adds beta * bias to all of them. The same n; result i is of row m + i * rows, before row m_end.
  template <int count>
  __device__ __forceinline__ void add_to(float (&results)[count], const LinearParams& p, int m, int n,
                                         int rows, int m_end) const {
    if (p.bias == nullptr) {
      return;
    }
    T bias[count];
#pragma unroll
    for (T& element : bias) {
      element = first_;
    }
    if (p.bias_stride_m != 0) {
#pragma unroll
      for (int i = 1; i < count; ++i) {
        if (m + i * rows < m_end && n < p.N) {
          bias[i] = *at(p, m + i * rows, n);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      results[i] = fmaf(p.beta, to_op(bias[i]), results[i]);
    }
  }

 private:
  static __device__ __forceinline__ const T* at(const LinearParams& p, int m, int n) {
    return static_cast<const T*>(p.bias) + m * p.bias_stride_m + n * p.bias_stride_n;
  }

  T first_{};
};

// One decision for all of a thread's results: a branch for each takes longer than what it decides. T is the
// dtype of the tensors.
//
// Of 16 bits, cuBLASLt's GELU doubles before it halves, so that a sum above half of the largest float is
// infinite; of fp32 it is not. Doubled by a multiply-add: ptxas takes a product that is halved for one
// instruction (FMUL.D2), in which nothing overflows.
template <typename T, int count>
__device__ __forceinline__ void activate(float (&results)[count], Epilogue epilogue) {
  if (epilogue == Epilogue::ReLU) {
#pragma unroll
    for (float& x : results) {
      x = x < 0.0f ? 0.0f : x;  // NaN stays
    }
  } else if (epilogue == Epilogue::GELU) {
#pragma unroll
    for (float& x : results) {
      const float inner = 0.7978845608f * fmaf(0.044715f * x * x, x, x);
      const float t = tanhf(inner);
      x = sizeof(T) == 2 ? fmaf(x, t, x) * 0.5f : x * (0.5f * (1.0f + t));
    }
  }
}

}  // namespace aten_ext::cuda
