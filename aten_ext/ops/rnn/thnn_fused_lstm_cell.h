// Bridge between the ATen side of the gates of an LSTM step (thnn_fused_lstm_cell.cpp) and their kernels
// (thnn_fused_lstm_cell.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/gates_backward.h"

namespace aten_ext::cuda {

// All tensors are contiguous but for the gradients that come in.
struct LstmGatesParams {
  Dtype dtype;
  const void* input_gates;   // [batch, 4 * hidden]: input, forget, cell, output
  const void* hidden_gates;  // [batch, 4 * hidden]
  const void* input_bias;    // [4 * hidden] or nullptr
  const void* hidden_bias;   // [4 * hidden], nullptr if input_bias is
  const void* cx;            // [batch, hidden]
  void* hy;                  // [batch, hidden]
  void* cy;                  // [batch, hidden]
  void* workspace;           // [batch, 4 * hidden]: the gates
  int64_t batch, hidden;     // > 0
};

struct LstmGatesBackwardParams {
  Dtype dtype;
  Incoming grad_hy, grad_cy;
  const void* cx;         // [batch, hidden]
  const void* cy;         // [batch, hidden]
  const void* workspace;  // [batch, 4 * hidden]
  void* grad_gates;       // [batch, 4 * hidden]
  void* grad_cx;          // [batch, hidden]
  BiasGradients biases;   // both have the same: in `input`
  GatesTile tile;
  int64_t batch, hidden;  // > 0
};

// `units`, of one row, that a thread has: 1, or 2 of fp32 or 16 bits, if hidden is even and everything
// aligned to two elements.
cudaError_t launch_lstm_gates(const LstmGatesParams& params, int units, cudaStream_t stream);
cudaError_t launch_lstm_gates_backward(const LstmGatesBackwardParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
