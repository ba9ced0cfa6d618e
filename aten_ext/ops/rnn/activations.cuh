// Sigmoid, tanh and relu, each in two forms: `accurate` by the library's functions, and `fast` for kernels
// whose every step waits for it.
//
// Fast: the hardware's ex2 and rcp, without the branches of expf, tanhf and the IEEE division. Near zero,
// where 1 - 2 / (1 + e^2x) has no relative accuracy, tanh is a polynomial. Both are computed, so that what
// does not wait for the exponential runs beside it.
#pragma once

#include <cuda_runtime.h>

#include "ops/rnn/fast_math.cuh"

namespace aten_ext::cuda {

__device__ __forceinline__ float accurate_sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// 1 / (1 + e^-x)
__device__ __forceinline__ float fast_sigmoid(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return approximate_reciprocal(1.0f + approximate_exp2(-kLog2E * x));
}

// tanh(x) for |x| below this is x + x * s * tanh_polynomial(s) with s = x * x: relative error 8e-9.
constexpr float kTanhNearZero = 0.55f;

__device__ __forceinline__ float tanh_polynomial(float s) {
  float p = fmaf(s, -6.0121375e-3f, 2.0907894e-2f);
  p = fmaf(s, p, -5.3820595e-2f);
  p = fmaf(s, p, 1.3332398e-1f);
  return fmaf(s, p, -3.3333316e-1f);
}

// 1 / (1 + e^2|x|); tanh|x| is 1 minus twice this.
__device__ __forceinline__ float tanh_tail(float x) {
  constexpr float kTwoLog2E = 2.8853900817779268f;
  return approximate_reciprocal(1.0f + approximate_exp2(kTwoLog2E * fabsf(x)));
}

__device__ __forceinline__ float fast_tanh(float x) {
  const float tail = tanh_tail(x);
  const float s = x * x;
  const float near = fmaf(x * s, tanh_polynomial(s), x);
  const float sign = copysignf(1.0f, x);
  const float far = fmaf(tail, -2.0f * sign, sign);
  return fabsf(x) < kTanhNearZero ? near : far;
}

struct Tanh {
  static __device__ __forceinline__ float accurate(float x) {
    return tanhf(x);
  }
  static __device__ __forceinline__ float fast(float x) {
    return fast_tanh(x);
  }
};

struct Relu {
  // NaN stays NaN.
  static __device__ __forceinline__ float accurate(float x) {
    return x < 0.0f ? 0.0f : x;
  }
  static __device__ __forceinline__ float fast(float x) {
    return accurate(x);
  }
};

}  // namespace aten_ext::cuda
