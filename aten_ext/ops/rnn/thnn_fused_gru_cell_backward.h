// Bridge between the ATen side of the backward of a GRU step's gates (thnn_fused_gru_cell_backward.cpp) and
// its kernel (thnn_fused_gru_cell_backward.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/gates_backward.h"

namespace aten_ext::cuda {

// All tensors are contiguous but for the gradient that comes in.
struct GruGatesBackwardParams {
  Dtype dtype;
  Incoming grad_hy;
  const void* workspace;    // [batch, 5 * hidden]: r, z, n, hx, hn
  void* grad_input_gates;   // [batch, 3 * hidden]
  void* grad_hidden_gates;  // [batch, 3 * hidden]
  void* grad_hx;            // [batch, hidden]
  BiasGradients biases;
  GatesTile tile;
  int64_t batch, hidden;  // > 0
};

cudaError_t launch_gru_gates_backward(const GruGatesBackwardParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
