// Bridge between the ATen side of the linear layers on CUDA (linear.cpp) and their kernel (linear.cu). No
// ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aten_ext::cuda {

enum class LinearDtype : uint8_t { Float, BFloat16, Half };
enum class LinearActivation : uint8_t { None, ReLU, GELU };  // GELU in its tanh form

// The most rows of mat1 that the kernel takes.
constexpr int kMostLinearRows = 64;

// out[M, N] = activation(beta * bias[M, N] + alpha * mat1[M, K] * mat2[K, N]). Strides are in elements.
struct LinearParams {
  const void* mat1;     // [M, K], k next to k; 16-byte aligned rows
  const void* mat2;     // [K, N]; see mat2_is_transposed; 16-byte aligned rows
  const void* bias;     // [M, N] with the strides below, 0 where it is broadcast; nullptr: none
  void* out;            // [M, N], n next to n
  int32_t M;            // 1 to kMostLinearRows
  int32_t N, K;         // > 0; K a multiple of 16 bytes; N too, unless mat2 is transposed
  int64_t mat1_stride;  // between rows
  int64_t mat2_stride;  // between rows of what lies in memory: [N, K] if transposed, else [K, N]
  int64_t bias_stride_m, bias_stride_n;
  int64_t out_stride;
  float alpha, beta;
  LinearDtype dtype;
  LinearActivation activation;
  bool mat2_is_transposed;  // the view that nn.Linear makes of its weight
};

// Queues the product on `stream` of the current device, one launch, no synchronisation, no allocation. The
// same bits on every run on a GPU of so many multiprocessors. Returns the first error.
cudaError_t launch_linear(const LinearParams& params, int multiprocessors, cudaStream_t stream);

}  // namespace aten_ext::cuda
