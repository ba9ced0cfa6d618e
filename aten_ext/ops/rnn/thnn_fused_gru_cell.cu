// The gates of one GRU step, from the products W_ih x (input_gates) and W_hh h (hidden_gates):
//
//   r = sigmoid(i_r + h_r + b_ir + b_hr)   z = sigmoid(i_z + h_z + b_iz + b_hz)
//   n = tanh(i_n + b_in + r * (h_n + b_hn))   hy = n + z * (hx - n)
//
// and, for the backward pass, workspace = [r, z, n, hx, h_n + b_hn]. Arithmetic in fp32 (fp64 for fp64), in
// PyTorch's order.
//
// Elements a hidden unit: reads 6 gates, hx and 6 biases (which stay in the caches), writes hy and 5 of
// workspace: 13 * sizeof(T) bytes. Memory-bound: B = 64, H = 1024 in fp32 is 3.4 MB, 0.8 us at 4.2 TB/s,
// about a launch's own time. Few elements are latency, so a thread has one or two units: docs/kernels/rnn.md.
#include "ops/rnn/thnn_fused_gru_cell.h"

#include <cmath>

#include "core/math.h"
#include "device/division.cuh"
#include "device/vector.cuh"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates.cuh"

namespace aten_ext::cuda {
namespace {

// ---- kernel ------------------------------------------------------------------------------------------

struct Arguments {
  GruGatesParams p;
  Divider<uint32_t> threads_of_row;
  uint32_t threads;  // of the grid that have something to do
};

// Each thread has kCount neighbouring units of one row.
template <typename T, int kCount>
__global__ __launch_bounds__(kThreads) void gru_gates_kernel(const __grid_constant__ Arguments args) {
  using Op = MathType<T>;
  constexpr int kGates = GruSizes::kGates;
  constexpr int kWorkspace = 5;  // values a unit: r, z, n, hx, hn
  const GruGatesParams& p = args.p;
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= args.threads) {
    return;
  }
  const Quotient<uint32_t> place = args.threads_of_row(index);
  const int64_t row = place.quotient;
  const int64_t unit = place.remainder * kCount;
  const int64_t hidden = p.hidden;

  const T* const input = static_cast<const T*>(p.input_gates) + row * kGates * hidden + unit;
  const T* const from_hidden = static_cast<const T*>(p.hidden_gates) + row * kGates * hidden + unit;
  Op i[kGates][kCount];
  Op h[kGates][kCount];
  Op b_i[kGates][kCount] = {};
  Op b_h[kGates][kCount] = {};
  Op hx[kCount];
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    load(i[gate], input + gate * hidden);
    load(h[gate], from_hidden + gate * hidden);
    if (p.input_bias != nullptr) {
      load(b_i[gate], static_cast<const T*>(p.input_bias) + gate * hidden + unit);
      load(b_h[gate], static_cast<const T*>(p.hidden_bias) + gate * hidden + unit);
    }
  }
  load(hx, static_cast<const T*>(p.hx) + row * hidden + unit);

  Op r[kCount];
  Op z[kCount];
  Op n[kCount];
  Op hn[kCount];
  Op hy[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    r[k] = sigmoid(i[0][k] + h[0][k] + b_i[0][k] + b_h[0][k]);
    z[k] = sigmoid(i[1][k] + h[1][k] + b_i[1][k] + b_h[1][k]);
    hn[k] = h[2][k] + b_h[2][k];
    n[k] = tanh(fma(r[k], hn[k], i[2][k] + b_i[2][k]));
    hy[k] = fma(z[k], hx[k] - n[k], n[k]);
  }
  store(static_cast<T*>(p.hy) + row * hidden + unit, hy);
  T* const workspace = static_cast<T*>(p.workspace) + row * kWorkspace * hidden + unit;
  store(workspace, r);
  store(workspace + hidden, z);
  store(workspace + 2 * hidden, n);
  store(workspace + 3 * hidden, hx);
  store(workspace + 4 * hidden, hn);
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename T, int kCount>
cudaError_t launch_count(const GruGatesParams& p, cudaStream_t stream) {
  const auto threads_of_row = static_cast<uint32_t>(p.hidden / kCount);
  const Arguments args{p, Divider<uint32_t>(threads_of_row), static_cast<uint32_t>(p.batch) * threads_of_row};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ceil_div(args.threads, uint32_t{kThreads}));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, gru_gates_kernel<T, kCount>, args);
}

template <typename T>
cudaError_t launch_dtype(const GruGatesParams& p, int units, cudaStream_t stream) {
  return units == 2 ? launch_count<T, 2>(p, stream) : launch_count<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_gru_gates(const GruGatesParams& p, int units, cudaStream_t stream) {
  switch (p.dtype) {
    case Dtype::Float:
      return launch_dtype<float>(p, units, stream);
    case Dtype::Double:
      return launch_dtype<double>(p, units, stream);
    case Dtype::Half:
      return launch_dtype<__half>(p, units, stream);
    case Dtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(p, units, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace aten_ext::cuda
