// The gates of one hidden unit with few and short instructions: every step waits for this chain.
//
// Sigmoid and tanh by the hardware's ex2 and rcp, without the branches of expf, tanhf and the IEEE division.
// Near zero, where 1 - 2 / (1 + e^2x) has no relative accuracy, tanh is a polynomial. Both are computed, and
// what does not wait for the exponential goes beside it.
#pragma once

#include <cuda_runtime.h>

#include "cuda/device/fast_math.cuh"
#include "cuda/device/gru_arguments.cuh"

namespace aten_ext::cuda {

// 1 / (1 + e^-x)
__device__ __forceinline__ float gru_fast_sigmoid(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  return approximate_reciprocal(1.0f + approximate_exp2(-kLog2E * x));
}

// h' of one unit from its three dot products with h. `x` contains the biases b_ir + b_hr, b_iz + b_hz and
// b_in; b_hn enters the reset gate's product.
__device__ __forceinline__ float gru_fast_unit(const GruInput& x, float hr, float hz, float hn, float b_hn,
                                               float h) {
  constexpr float kTwoLog2E = 2.8853900817779268f;
  const float r = gru_fast_sigmoid(x.r + hr);
  const float z = gru_fast_sigmoid(x.z + hz);
  const float a = fmaf(r, hn + b_hn, x.n);  // n = tanh(a); h' = (1 - z) n + z h
  const float q = approximate_reciprocal(1.0f + approximate_exp2(kTwoLog2E * fabsf(a)));
  const float s = a * a;
  const float rest = 1.0f - z;
  const float kept = z * h;
  // tanh(a) / a - 1 for |a| < 0.6: relative error of tanh 8e-9.
  float p = fmaf(s, -6.0121375e-3f, 2.0907894e-2f);
  p = fmaf(s, p, -5.3820595e-2f);
  p = fmaf(s, p, 1.3332398e-1f);
  p = fmaf(s, p, -3.3333316e-1f);
  const float near = fmaf(fmaf(a * s, p, a), rest, kept);
  const float signed_rest = copysignf(rest, a);
  const float far = fmaf(q, -2.0f * signed_rest, signed_rest + kept);
  return fabsf(a) < 0.55f ? near : far;
}

}  // namespace aten_ext::cuda
