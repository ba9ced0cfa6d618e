// What one hidden unit of a recurrent cell computes in a step of the backward: the gradients of its gates
// from the whole gradient of its state, by coefficients that do not depend on a later step (coefficients.h).
//
// A cell has:
//   kGates, kCoefficients   see coefficients.h
//   kCarries                values that a unit carries from step to step beside what products give: of a GRU
//                           the part of dh that bypasses the gates, of an LSTM dc
//   kBypass                 whether that value is a part of the earlier step's dh
//   kInputNew               whether the new gate's input part has a gradient of its own
//   gradients()             of all gates
// All arithmetic is in fp32.
#pragma once

#include <cuda_runtime.h>

#include "ops/rnn/backward/coefficients.h"

namespace aten_ext::cuda {

// Of one unit: with respect to W_hh h + b_hh of each gate, and of the new gate's input part.
template <int kGates>
struct GateGradients {
  float hidden[kGates];
  float input_new;
};

struct GruGradients : GruBackwardSizes {
  static constexpr bool kBypass = true;
  static constexpr bool kInputNew = true;

  static __device__ __forceinline__ GateGradients<kGates> gradients(const float (&c)[kCoefficients], float dh,
                                                                    float& carry) {
    const float input_new = c[kNew] * dh;
    carry = c[kZ] * dh;
    return {{c[kReset] * dh, c[kUpdate] * dh, c[kR] * input_new}, input_new};
  }
};

struct LstmGradients : LstmBackwardSizes {
  static constexpr bool kBypass = false;
  static constexpr bool kInputNew = false;

  static __device__ __forceinline__ GateGradients<kGates> gradients(const float (&c)[kCoefficients], float dh,
                                                                    float& carry) {
    const float dc = fmaf(c[kP], dh, carry);
    carry = c[kF] * dc;
    return {{c[kInput] * dc, c[kForget] * dc, c[kCell] * dc, c[kOutput] * dh}, 0.0f};
  }
};

struct RnnGradients : RnnBackwardSizes {
  static constexpr bool kBypass = false;
  static constexpr bool kInputNew = false;

  static __device__ __forceinline__ GateGradients<kGates> gradients(const float (&c)[kCoefficients], float dh,
                                                                    float& /*carry*/) {
    return {{c[0] * dh}, 0.0f};
  }
};

}  // namespace aten_ext::cuda
