// Bridge between the ATen side of one step of a cell (cells.cpp, cudnn_rnn.cpp) and its kernels
// (cell_step.cuh). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/cell_kernel.h"
#include "ops/rnn/cell_sizes.h"

namespace aten_ext::cuda {

struct CellDirection {
  const void* w_ih;  // [gates * hidden, input], contiguous: the cell's gates in their order
  const void* w_hh;  // [gates * hidden, hidden], contiguous
  const void* b_ih;  // [gates * hidden] or nullptr
  const void* b_hh;  // [gates * hidden] or nullptr
  const void* x;     // [batch, input], rows x_row apart
  const void* h;     // [batch, hidden], rows h_row apart
  void* hy;          // [batch, hidden], contiguous
  void* y;           // [batch, hidden] with rows y_row apart: a second copy; or nullptr
};

// What an LSTM carries beside h, [batch, hidden], contiguous. Between the steps of a sequence it is in fp32,
// before it was rounded.
struct CellCarried {
  const void* c;        // nullptr, as c_fp32 is: zeros
  void* cy;             // or nullptr
  const float* c_fp32;  // nullptr: it is c
  float* cy_fp32;       // nullptr: cy is enough
};

struct CellParams {
  CellDirection direction[2];
  int directions;
  Cell cell;
  Dtype dtype;
  int batch, input, hidden;  // > 0
  int64_t x_row, h_row, y_row;
  CellCarried carried[2];  // of each direction
};

// One launch: both matrix-vector products, biases and gates.
cudaError_t launch_cell(const CellParams& params, CellKernel kernel, cudaStream_t stream);

}  // namespace aten_ext::cuda
