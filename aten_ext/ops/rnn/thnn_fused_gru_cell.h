// Bridge between the ATen side of the gates of a GRU step (thnn_fused_gru_cell.cpp) and their kernel
// (thnn_fused_gru_cell.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

struct GruGatesParams {
  Dtype dtype;
  const void* input_gates;   // [batch, 3 * hidden], contiguous: reset, update, new
  const void* hidden_gates;  // [batch, 3 * hidden], contiguous
  const void* input_bias;    // [3 * hidden] or nullptr
  const void* hidden_bias;   // [3 * hidden], nullptr if input_bias is
  const void* hx;            // [batch, hidden], contiguous
  void* hy;                  // [batch, hidden], contiguous
  void* workspace;           // [batch, 5 * hidden], contiguous
  int64_t batch, hidden;     // > 0
};

// `units`, of one row, that a thread has: 1, or 2 of fp32 or 16 bits, if hidden is even and everything
// aligned to two elements.
cudaError_t launch_gru_gates(const GruGatesParams& params, int units, cudaStream_t stream);

}  // namespace aten_ext::cuda
