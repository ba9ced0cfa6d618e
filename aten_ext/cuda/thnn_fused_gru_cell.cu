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
// about a launch's own time. Upstream reads and writes element by element and divides a 32-bit index twice
// for each; this takes 16 bytes a thread of each operand. Not measured on its own yet.
#include "cuda/thnn_fused_gru_cell.h"

#include <cmath>

#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kThreads = 128;  // small blocks: most calls have few elements, and should reach many SMs

// ---- kernel ------------------------------------------------------------------------------------------

template <typename Op>
__device__ __forceinline__ Op sigmoid(Op x) {
  return Op(1) / (Op(1) + exp(-x));
}

// kCount neighbouring elements, as arithmetic wants them: 16-byte loads where they are that many.
template <typename Op, int kCount, typename T>
__device__ __forceinline__ void load(Op (&to)[kCount], const T* from) {
  constexpr int kVector = Vector<T>::kSize;
  if constexpr (kCount % kVector == 0) {
#pragma unroll
    for (int i = 0; i < kCount; i += kVector) {
      T vector[kVector];
      load_vector(vector, from + i);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        to[i + j] = static_cast<Op>(to_op(vector[j]));
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = static_cast<Op>(to_op(from[i]));
    }
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void store(T* to, const MathType<T> (&from)[kCount]) {
  T values[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = from_op<T>(from[i]);
  }
  if constexpr (kCount == Vector<T>::kSize) {
    store_vector(to, values);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = values[i];
    }
  }
}

// Each thread has kCount neighbouring units of one row: a vector, or one where rows are not whole vectors.
template <typename T, int kCount>
__global__ __launch_bounds__(kThreads) void gru_gates_kernel(const __grid_constant__ GruGatesParams p) {
  using Op = MathType<T>;
  const int64_t row_threads = p.hidden / kCount;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= p.batch * row_threads) {
    return;
  }
  const int64_t row = index / row_threads;
  const int64_t unit = index % row_threads * kCount;
  const int64_t hidden = p.hidden;

  const T* const input = static_cast<const T*>(p.input_gates) + row * 3 * hidden + unit;
  const T* const from_hidden = static_cast<const T*>(p.hidden_gates) + row * 3 * hidden + unit;
  Op i[3][kCount];
  Op h[3][kCount];
  Op b_i[3][kCount] = {};
  Op b_h[3][kCount] = {};
  Op hx[kCount];
#pragma unroll
  for (int gate = 0; gate < 3; ++gate) {
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
  T* const workspace = static_cast<T*>(p.workspace) + row * 5 * hidden + unit;
  store(workspace, r);
  store(workspace + hidden, z);
  store(workspace + 2 * hidden, n);
  store(workspace + 3 * hidden, hx);
  store(workspace + 4 * hidden, hn);
}

// ---- launch ------------------------------------------------------------------------------------------

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;  // so is nullptr
}

template <typename T, int kCount>
cudaError_t launch_count(const GruGatesParams& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.batch * (p.hidden / kCount) + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, gru_gates_kernel<T, kCount>, p);
}

template <typename T>
cudaError_t launch_dtype(const GruGatesParams& p, cudaStream_t stream) {
  constexpr int kVector = Vector<T>::kSize;
  const bool vectors = p.hidden % kVector == 0 && aligned(p.input_gates) && aligned(p.hidden_gates) &&
                       aligned(p.input_bias) && aligned(p.hidden_bias) && aligned(p.hx) && aligned(p.hy) &&
                       aligned(p.workspace);
  return vectors ? launch_count<T, kVector>(p, stream) : launch_count<T, 1>(p, stream);
}

}  // namespace

cudaError_t launch_gru_gates(const GruGatesParams& params, cudaStream_t stream) {
  switch (params.dtype) {
    case GruGatesDtype::Float:
      return launch_dtype<float>(params, stream);
    case GruGatesDtype::Double:
      return launch_dtype<double>(params, stream);
    case GruGatesDtype::Half:
      return launch_dtype<__half>(params, stream);
    case GruGatesDtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace aten_ext::cuda
