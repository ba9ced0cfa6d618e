// The coefficients of a step's gradients (coefficients.h) from what its gates were. All arithmetic is in
// fp32.
#pragma once

#include <cuda_runtime.h>

#include "ops/rnn/backward/coefficients.h"

namespace aten_ext::cuda {

// hn: W_hn h + b_hn; before: the state before the step.
__device__ __forceinline__ void make_coefficients(float (&c)[GruBackwardSizes::kCoefficients], float r,
                                                  float z, float n, float hn, float before) {
  using Sizes = GruBackwardSizes;
  const float of_new = (1.0f - z) * fmaf(-n, n, 1.0f);
  c[Sizes::kReset] = of_new * hn * (r * (1.0f - r));
  c[Sizes::kUpdate] = (before - n) * (z * (1.0f - z));
  c[Sizes::kNew] = of_new;
  c[Sizes::kR] = r;
  c[Sizes::kZ] = z;
}

// before: c before the step; squashed: tanh(c) behind it.
__device__ __forceinline__ void make_coefficients(float (&c)[LstmBackwardSizes::kCoefficients], float i,
                                                  float f, float g, float o, float before, float squashed) {
  using Sizes = LstmBackwardSizes;
  c[Sizes::kP] = o * fmaf(-squashed, squashed, 1.0f);
  c[Sizes::kInput] = g * (i * (1.0f - i));
  c[Sizes::kForget] = before * (f * (1.0f - f));
  c[Sizes::kCell] = i * fmaf(-g, g, 1.0f);
  c[Sizes::kOutput] = squashed * (o * (1.0f - o));
  c[Sizes::kF] = f;
}

}  // namespace aten_ext::cuda
