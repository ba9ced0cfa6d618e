// Bridge between the ATen side of the gates of a GRU step (thnn_fused_gru_cell.cpp, cudnn_rnn.cpp) and their
// kernel (thnn_fused_gru_cell.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aten_ext::cuda {

enum class GruGatesDtype : uint8_t { Float, Double, Half, BFloat16 };

struct GruGatesParams {
  GruGatesDtype dtype;
  bool float_gates;          // input_gates and hidden_gates are float, whatever dtype is
  const void* input_gates;   // [batch, 3 * hidden], contiguous: reset, update, new
  const void* hidden_gates;  // [batch, 3 * hidden], contiguous
  const void* input_bias;    // [3 * hidden] or nullptr
  const void* hidden_bias;   // [3 * hidden], nullptr if input_bias is
  const void* hx;            // [batch, hidden], contiguous
  void* hy;                  // [batch, hidden], contiguous
  void* workspace;           // [batch, 5 * hidden], contiguous; or nullptr
  void* y;                   // [batch, hidden] with rows y_row apart: a second copy of hy; or nullptr
  int64_t y_row;
  int64_t batch, hidden;  // > 0
};

cudaError_t launch_gru_gates(const GruGatesParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
