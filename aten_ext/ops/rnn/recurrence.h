// Bridge between the ATen side of a recurrent layer (cudnn_rnn.cpp) and its kernels (recurrence.cu). No ATen
// here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/plan.h"

namespace aten_ext::cuda {

// One direction of a layer.
struct RecurrenceDirection {
  const void* w_hh;         // [gates * hidden, hidden], contiguous: the cell's gates in their order
  const void* b_ih;         // [gates * hidden] or nullptr
  const void* b_hh;         // [gates * hidden], nullptr if b_ih is
  const float* projection;  // W_ih * input, [steps, batch, gates * hidden], without biases
  const void* h0;           // [batch, hidden], contiguous
  void* hy;                 // [batch, hidden], contiguous
  void* y;                  // [steps, batch, hidden]
  // A part of a sequence, in 16 bits: h0 and hy before they were rounded, [batch, hidden]. nullptr at the
  // sequence's ends.
  const float* h0_fp32 = nullptr;
  float* hy_fp32 = nullptr;
  // Of an LSTM: as h0 and hy. Without c0 it is zero.
  const void* c0 = nullptr;
  void* cy = nullptr;
  const float* c0_fp32 = nullptr;
  float* cy_fp32 = nullptr;
  // In training: [steps, batch, coefficients, hidden], what the coefficients of the gradients are saved in
  // (backward/saved.cuh). nullptr in all directions: they are not.
  void* coefficients = nullptr;
};

struct RecurrenceParams {
  RecurrenceDirection direction[2];  // the second runs backwards in time
  int directions;
  Cell cell;
  Dtype dtype;
  int64_t steps;                            // > 0
  int batch;                                // > 0
  int hidden;                               // > 0
  int64_t projection_step, projection_row;  // strides in elements; the last dimension is contiguous
  int64_t y_step, y_row;
  Recurrence plan;
  uint64_t* words;  // plan.words of them, zero
};

// All steps of one layer, or a part of them, both directions, in one launch.
cudaError_t launch_recurrence(const RecurrenceParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
