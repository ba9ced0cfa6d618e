// What one hidden unit of a recurrent cell computes in a step. The kernels hand it the unit's share of the
// input projection, its dot products with h, its biases and what it carries; which gate is which, and how
// they meet, only the cell knows.
//
// x is the input projection W_ih * input[t], without biases; b_i and b_h are b_ih and b_hh.
//
// GRU (Cho et al. 2014, arXiv:1406.1078, with the bias inside the reset gate's product, as cuDNN and PyTorch
// have it):
//   r = sigmoid(x_r + b_ir + W_hr h + b_hr)       z = sigmoid(x_z + b_iz + W_hz h + b_hz)
//   n = tanh(x_n + b_in + r * (W_hn h + b_hn))    h' = n + z * (h - n)
// LSTM:
//   i, f, o = sigmoid(x + b_i + W_h h + b_h)      g = tanh(x_g + b_ig + W_hg h + b_hg)
//   c' = f * c + i * g                            h' = o * tanh(c')
// RNN:
//   h' = tanh or relu of x + b_i + W_h h + b_h
//
// A cell has:
//   kGates, kStates   see cell_sizes.h
//   Bias              a unit's biases, those that always meet added together: load_bias(), load_each_bias()
//   Input             x and the biases that join it before h is known: input()
//   State             the carried values beside h, kStates floats
//   step()            h' from an Input and the kGates dot products with h, by the fast functions
//   accurate_step()   h' from x itself, by the library's functions
//   kBounded          whether h' is from -1 to 1, or NaN
//   kSaves            whether its State remembers the step's gates too (saving.cuh)
//   kSums             of a kernel that makes both products: W_ih x and W_hh h share a sum where they only add
//   input_sum(gate), hidden_sum(gate), finish()
// All arithmetic is in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "device/vector.cuh"
#include "ops/rnn/activations.cuh"
#include "ops/rnn/cell_sizes.h"

namespace aten_ext::cuda {

// What a unit carries beside h.
template <int kCount>
struct CellState {
  float value[kCount];
};
template <>
struct CellState<0> {};

struct GruCell : GruSizes {
  enum Gate { kReset, kUpdate, kNew };
  static constexpr bool kBounded = false;  // h may begin anywhere, and z keep it
  static constexpr bool kSaves = false;
  // Of one step; hn is W_hn h + b_hn.
  struct Gates {
    float r, z, n, hn;
  };

  using State = CellState<kStates>;
  struct Bias {
    float r = 0.0f, z = 0.0f, in = 0.0f, hn = 0.0f;
  };
  struct Input {
    float r, z, n;
  };

  // Of the unit, if it `exists` and the layer has biases; else zero. T is the dtype of the tensors.
  template <typename T>
  static __device__ __forceinline__ Bias load_bias(const void* b_ih_, const void* b_hh_, int hidden, int unit,
                                                   bool exists) {
    Bias bias;
    if (exists && b_ih_ != nullptr) {
      const auto* const b_ih = static_cast<const T*>(b_ih_);
      const auto* const b_hh = static_cast<const T*>(b_hh_);
      bias.r = to_op(b_ih[unit]) + to_op(b_hh[unit]);
      bias.z = to_op(b_ih[hidden + unit]) + to_op(b_hh[hidden + unit]);
      bias.in = to_op(b_ih[2 * hidden + unit]);
      bias.hn = to_op(b_hh[2 * hidden + unit]);
    }
    return bias;
  }

  // The same where each of the two may be absent.
  template <typename T>
  static __device__ __forceinline__ Bias load_each_bias(const void* b_ih, const void* b_hh, int hidden,
                                                        int unit) {
    Bias bias;
    if (b_ih != nullptr) {
      const auto* const b = static_cast<const T*>(b_ih);
      bias.r = to_op(b[unit]);
      bias.z = to_op(b[hidden + unit]);
      bias.in = to_op(b[2 * hidden + unit]);
    }
    if (b_hh != nullptr) {
      const auto* const b = static_cast<const T*>(b_hh);
      bias.r += to_op(b[unit]);
      bias.z += to_op(b[hidden + unit]);
      bias.hn = to_op(b[2 * hidden + unit]);
    }
    return bias;
  }

  // b_hn is not part of it: r multiplies it.
  static __device__ __forceinline__ Input input(const float (&x)[kGates], const Bias& bias) {
    return {x[kReset] + bias.r, x[kUpdate] + bias.z, x[kNew] + bias.in};
  }

  static __device__ __forceinline__ float step(const Input& x, const float (&sum)[kGates], const Bias& bias,
                                               float h, State& /*state*/) {
    Gates unused;
    return step_of(x, sum, bias, h, unused);
  }

  // Few and short instructions: a step of the recurrence waits for this chain. Nothing in it needs n itself.
  static __device__ __forceinline__ float step_of(const Input& x, const float (&sum)[kGates],
                                                  const Bias& bias, float h, Gates& gates) {
    const float r = fast_sigmoid(x.r + sum[kReset]);
    const float z = fast_sigmoid(x.z + sum[kUpdate]);
    const float a = fmaf(r, sum[kNew] + bias.hn, x.n);  // n = tanh(a); h' = (1 - z) n + z h
    // tanh(a) and the blend with h in one: fast_tanh(), of which both branches take in (1 - z) and z h.
    const float tail = tanh_tail(a);
    const float s = a * a;
    const float rest = 1.0f - z;
    const float kept = z * h;
    const float near = fmaf(fmaf(a * s, tanh_polynomial(s), a), rest, kept);
    const float signed_rest = copysignf(rest, a);
    const float far = fmaf(tail, -2.0f * signed_rest, signed_rest + kept);
    gates = {r, z, fast_tanh(a), sum[kNew] + bias.hn};
    return fabsf(a) < kTanhNearZero ? near : far;
  }

  static __device__ __forceinline__ float accurate_step(const float (&x)[kGates], const float (&sum)[kGates],
                                                        const Bias& bias, float h, State& /*state*/) {
    const float r = accurate_sigmoid(x[kReset] + sum[kReset] + bias.r);
    const float z = accurate_sigmoid(x[kUpdate] + sum[kUpdate] + bias.z);
    const float n = tanhf(x[kNew] + bias.in + r * (sum[kNew] + bias.hn));
    return n + z * (h - n);
  }

  // The new gate's hidden part stays apart from its input part, because r multiplies only the former.
  static constexpr int kSums = 4;
  static __device__ __forceinline__ constexpr int input_sum(int gate) {
    return gate;
  }
  static __device__ __forceinline__ constexpr int hidden_sum(int gate) {
    return gate == kNew ? 3 : gate;
  }
  static __device__ __forceinline__ float finish(const float (&sum)[kSums], const Bias& bias, float h,
                                                 State& state) {
    return accurate_step({0.0f, 0.0f, sum[input_sum(kNew)]},
                         {sum[kReset], sum[kUpdate], sum[hidden_sum(kNew)]}, bias, h, state);
  }
};

// A cell whose biases only add to the projection, gate by gate.
template <typename Sizes>
struct AdditiveCell : Sizes {
  using Sizes::kGates;
  using Sizes::kStates;

  static constexpr bool kSaves = false;

  using State = CellState<kStates>;
  struct Bias {
    float of[kGates] = {};
  };
  struct Input {
    float of[kGates];
  };

  template <typename T>
  static __device__ __forceinline__ Bias load_bias(const void* b_ih, const void* b_hh, int hidden, int unit,
                                                   bool exists) {
    return exists ? load_each_bias<T>(b_ih, b_hh, hidden, unit) : Bias{};
  }

  template <typename T>
  static __device__ __forceinline__ Bias load_each_bias(const void* b_ih, const void* b_hh, int hidden,
                                                        int unit) {
    Bias bias;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const int64_t at = static_cast<int64_t>(gate) * hidden + unit;
      const float of_input = b_ih != nullptr ? to_op(static_cast<const T*>(b_ih)[at]) : 0.0f;
      const float of_hidden = b_hh != nullptr ? to_op(static_cast<const T*>(b_hh)[at]) : 0.0f;
      bias.of[gate] = of_input + of_hidden;
    }
    return bias;
  }

  static __device__ __forceinline__ Input input(const float (&x)[kGates], const Bias& bias) {
    Input input;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      input.of[gate] = x[gate] + bias.of[gate];
    }
    return input;
  }

  static constexpr int kSums = kGates;
  static __device__ __forceinline__ constexpr int input_sum(int gate) {
    return gate;
  }
  static __device__ __forceinline__ constexpr int hidden_sum(int gate) {
    return gate;
  }
};

struct LstmCell : AdditiveCell<LstmSizes> {
  enum Gate { kInput, kForget, kCell, kOutput };
  static constexpr bool kBounded = true;
  // Of one step, with c before it and tanh(c) behind it.
  struct Gates {
    float i, f, g, o, before, squashed;
  };

  static __device__ __forceinline__ float step(const Input& x, const float (&sum)[kGates], const Bias& bias,
                                               float h, State& state) {
    Gates unused;
    return step_of(x, sum, bias, h, state, unused);
  }

  static __device__ __forceinline__ float step_of(const Input& x, const float (&sum)[kGates],
                                                  const Bias& /*bias*/, float /*h*/, State& state,
                                                  Gates& gates) {
    float& c = state.value[0];
    const float i = fast_sigmoid(x.of[kInput] + sum[kInput]);
    const float f = fast_sigmoid(x.of[kForget] + sum[kForget]);
    const float g = fast_tanh(x.of[kCell] + sum[kCell]);
    const float o = fast_sigmoid(x.of[kOutput] + sum[kOutput]);
    const float before = c;
    c = fmaf(f, c, i * g);
    const float squashed = fast_tanh(c);
    gates = {i, f, g, o, before, squashed};
    return o * squashed;
  }

  static __device__ __forceinline__ float accurate_step(const float (&x)[kGates], const float (&sum)[kGates],
                                                        const Bias& bias, float /*h*/, State& state) {
    float& c = state.value[0];
    const float i = accurate_sigmoid(x[kInput] + sum[kInput] + bias.of[kInput]);
    const float f = accurate_sigmoid(x[kForget] + sum[kForget] + bias.of[kForget]);
    const float g = tanhf(x[kCell] + sum[kCell] + bias.of[kCell]);
    const float o = accurate_sigmoid(x[kOutput] + sum[kOutput] + bias.of[kOutput]);
    c = f * c + i * g;
    return o * tanhf(c);
  }

  static __device__ __forceinline__ float finish(const float (&sum)[kSums], const Bias& bias, float h,
                                                 State& state) {
    return accurate_step({}, sum, bias, h, state);
  }
};

template <typename Activation>
struct RnnCell : AdditiveCell<RnnSizes> {
  static constexpr bool kBounded = std::is_same_v<Activation, Tanh>;
  static __device__ __forceinline__ float step(const Input& x, const float (&sum)[kGates],
                                               const Bias& /*bias*/, float /*h*/, State& /*state*/) {
    return Activation::fast(x.of[0] + sum[0]);
  }

  static __device__ __forceinline__ float accurate_step(const float (&x)[kGates], const float (&sum)[kGates],
                                                        const Bias& bias, float /*h*/, State& /*state*/) {
    return Activation::accurate(x[0] + sum[0] + bias.of[0]);
  }

  static __device__ __forceinline__ float finish(const float (&sum)[kSums], const Bias& bias, float h,
                                                 State& state) {
    return accurate_step({0.0f}, sum, bias, h, state);
  }
};

}  // namespace aten_ext::cuda
