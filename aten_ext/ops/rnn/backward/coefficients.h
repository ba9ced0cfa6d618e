// Coefficients of a step's gradients, [coefficients, H] for each step and row: their number and order. They
// are made before the sequential part of a backward, which reads them. Standard library only.
//
// GRU, with hn = W_hn h + b_hn and h the state before the step:
//   A_r = A_n hn r (1 - r)   A_z = (h - n) z (1 - z)   A_n = (1 - z) (1 - n^2)   r   z
// LSTM:
//   p = o (1 - tanh^2 c)   A_i = g i (1 - i)   A_f = c_prev f (1 - f)   A_g = i (1 - g^2)
//   A_o = tanh(c) o (1 - o)   f
// RNN:
//   A = 1 - h'^2 (tanh), or 1 where h' > 0 and else 0 (relu)
#pragma once

#include "ops/rnn/cell_sizes.h"

namespace aten_ext::cuda {

struct GruBackwardSizes : GruSizes {
  static constexpr int kCarries = 1;  // the part of dh that bypasses the gates
  static constexpr int kCoefficients = 5;
  enum Coefficient { kReset, kUpdate, kNew, kR, kZ };
  static constexpr int kOfState = kUpdate;  // which of them is a multiple of a state
};

struct LstmBackwardSizes : LstmSizes {
  static constexpr int kCarries = 1;  // dc
  static constexpr int kCoefficients = 6;
  enum Coefficient { kP, kInput, kForget, kCell, kOutput, kF };
  static constexpr int kOfState = kForget;
};

struct RnnBackwardSizes : RnnSizes {
  static constexpr int kCarries = 0;
  static constexpr int kCoefficients = 1;
  static constexpr int kOfState = -1;
};

}  // namespace aten_ext::cuda
