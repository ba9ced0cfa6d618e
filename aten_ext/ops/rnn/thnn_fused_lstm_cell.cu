// The gates of one LSTM step, from the products W_ih x (input_gates) and W_hh h (hidden_gates), and their
// backward. With s = input_gates + hidden_gates + b_ih + b_hh:
//
//   i = sigmoid(s_i)   f = sigmoid(s_f)   g = tanh(s_g)   o = sigmoid(s_o)
//   cy = f * cx + i * g   hy = o * tanh(cy)                         workspace = [i, f, g, o]
//
//   dc = dhy * o * (1 - tanh(cy)^2) + dcy                           dcx = dc * f
//   di = dc * g * (1 - i) * i   df = dc * cx * (1 - f) * f
//   dg = dc * i * (1 - g^2)     do = dhy * tanh(cy) * (1 - o) * o
//
// Arithmetic in fp32 (fp64 for fp64), in PyTorch's order, with the multiply-adds that nvcc makes of it there:
// the same bits. Only the sums of the biases' gradients have an order of their own.
//
// Elements a hidden unit: the forward reads 8 gates and cx (and 8 biases, which stay in the caches), writes
// hy, cy and 4 of workspace: 15 * sizeof(T) bytes; the backward reads 4 + 2 + 2 and writes 4 + 1: 13. Few
// elements are latency: docs/kernels/rnn.md.
#include "ops/rnn/thnn_fused_lstm_cell.h"

#include <cmath>

#include "core/math.h"
#include "device/division.cuh"
#include "device/vector.cuh"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates.cuh"
#include "ops/rnn/gates_backward.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kGates = LstmSizes::kGates;

// ---- forward -----------------------------------------------------------------------------------------

struct Arguments {
  LstmGatesParams p;
  Divider<uint32_t> threads_of_row;
  uint32_t threads;  // of the grid that have something to do
};

// Each thread has kCount neighbouring units of one row.
template <typename T, int kCount>
__global__ __launch_bounds__(kThreads) void lstm_gates_kernel(const __grid_constant__ Arguments args) {
  using Op = MathType<T>;
  const LstmGatesParams& p = args.p;
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= args.threads) {
    return;
  }
  const Quotient<uint32_t> place = args.threads_of_row(index);
  const int64_t row = place.quotient;
  const int64_t unit = place.remainder * kCount;
  const int64_t hidden = p.hidden;
  const int64_t at = row * hidden + unit;
  const int64_t gates_at = row * kGates * hidden + unit;

  Op i[kGates][kCount];
  Op h[kGates][kCount];
  Op b_i[kGates][kCount] = {};
  Op b_h[kGates][kCount] = {};
  Op cx[kCount];
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    load(i[gate], static_cast<const T*>(p.input_gates) + gates_at + gate * hidden);
    load(h[gate], static_cast<const T*>(p.hidden_gates) + gates_at + gate * hidden);
    if (p.input_bias != nullptr) {
      load(b_i[gate], static_cast<const T*>(p.input_bias) + gate * hidden + unit);
      load(b_h[gate], static_cast<const T*>(p.hidden_bias) + gate * hidden + unit);
    }
  }
  load(cx, static_cast<const T*>(p.cx) + at);

  Op gates[kGates][kCount];
  Op cy[kCount];
  Op hy[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const Op sum = i[gate][k] + h[gate][k] + b_i[gate][k] + b_h[gate][k];
      gates[gate][k] = gate == 2 ? tanh(sum) : sigmoid(sum);
    }
    cy[k] = fma(gates[1][k], cx[k], gates[0][k] * gates[2][k]);
    hy[k] = gates[3][k] * tanh(cy[k]);
  }
  store(static_cast<T*>(p.hy) + at, hy);
  store(static_cast<T*>(p.cy) + at, cy);
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    store(static_cast<T*>(p.workspace) + gates_at + gate * hidden, gates[gate]);
  }
}

template <typename T, int kCount>
cudaError_t launch_count(const LstmGatesParams& p, cudaStream_t stream) {
  const auto threads_of_row = static_cast<uint32_t>(p.hidden / kCount);
  const Arguments args{p, Divider<uint32_t>(threads_of_row), static_cast<uint32_t>(p.batch) * threads_of_row};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ceil_div(args.threads, uint32_t{kThreads}));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, lstm_gates_kernel<T, kCount>, args);
}

template <typename T>
cudaError_t launch_dtype(const LstmGatesParams& p, int units, cudaStream_t stream) {
  return units == 2 ? launch_count<T, 2>(p, stream) : launch_count<T, 1>(p, stream);
}

// ---- backward ----------------------------------------------------------------------------------------

struct LstmBackward {
  using Params = LstmGatesBackwardParams;
  static constexpr int kGates = LstmSizes::kGates;

  template <typename T, int kCount>
  static __device__ __forceinline__ void backward(const Params& p, int64_t row, int64_t unit,
                                                  MathType<T> (&sums)[kSums][kCount]) {
    using Op = MathType<T>;
    const int64_t hidden = p.hidden;
    const int64_t at = row * hidden + unit;
    const int64_t gates_at = row * kGates * hidden + unit;
    Op gates[kGates][kCount];
    Op cx[kCount];
    Op cy[kCount];
    Op grad_hy[kCount];
    Op grad_cy[kCount];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      load(gates[gate], static_cast<const T*>(p.workspace) + gates_at + gate * hidden);
    }
    load(cx, static_cast<const T*>(p.cx) + at);
    load(cy, static_cast<const T*>(p.cy) + at);
    load<T>(grad_hy, p.grad_hy, row, unit);
    load<T>(grad_cy, p.grad_cy, row, unit);

    Op grads[kGates][kCount];
    Op grad_cx[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Op i = gates[0][k];
      const Op f = gates[1][k];
      const Op g = gates[2][k];
      const Op o = gates[3][k];
      const Op y = tanh(cy[k]);
      const Op grad_c = fma(grad_hy[k] * o, fma(-y, y, Op(1)), grad_cy[k]);
      grads[0][k] = grad_c * g * (Op(1) - i) * i;
      grads[1][k] = grad_c * cx[k] * (Op(1) - f) * f;
      grads[2][k] = grad_c * i * fma(-g, g, Op(1));
      grads[3][k] = grad_hy[k] * y * (Op(1) - o) * o;
      grad_cx[k] = grad_c * f;
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        sums[gate][k] += stored<T>(grads[gate][k]);
      }
    }
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      store(static_cast<T*>(p.grad_gates) + gates_at + gate * hidden, grads[gate]);
    }
    store(static_cast<T*>(p.grad_cx) + at, grad_cx);
  }
};

}  // namespace

cudaError_t launch_lstm_gates(const LstmGatesParams& p, int units, cudaStream_t stream) {
  switch (p.dtype) {
    case Dtype::Float:
      return launch_dtype<float>(p, units, stream);
    case Dtype::Double:
      return launch_count<double, 1>(p, stream);
    case Dtype::Half:
      return launch_dtype<__half>(p, units, stream);
    case Dtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(p, units, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_lstm_gates_backward(const LstmGatesBackwardParams& p, cudaStream_t stream) {
  return launch_gates_backward<LstmBackward>(p, stream);
}

}  // namespace aten_ext::cuda
