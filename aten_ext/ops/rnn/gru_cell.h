// Bridge between the ATen side of one step of a GRU (gru_cell.cpp, cudnn_rnn.cpp) and its kernel
// (gru_cell.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/cell_kernel.h"

namespace aten_ext::cuda {

struct GruCellDirection {
  const void* w_ih;  // [3 * hidden, input], contiguous: reset, update, new
  const void* w_hh;  // [3 * hidden, hidden], contiguous
  const void* b_ih;  // [3 * hidden] or nullptr
  const void* b_hh;  // [3 * hidden] or nullptr
  const void* x;     // [batch, input], rows x_row apart
  const void* h;     // [batch, hidden], rows h_row apart
  void* hy;          // [batch, hidden], contiguous
  void* y;           // [batch, hidden] with rows y_row apart: a second copy; or nullptr
};

struct GruCellParams {
  GruCellDirection direction[2];
  int directions;
  Dtype dtype;
  int batch, input, hidden;  // > 0
  int64_t x_row, h_row, y_row;
};

// One launch: both matrix-vector products, biases and gates.
cudaError_t launch_gru_cell(const GruCellParams& params, CellKernel kernel, cudaStream_t stream);

}  // namespace aten_ext::cuda
