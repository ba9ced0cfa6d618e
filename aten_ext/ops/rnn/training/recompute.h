// Bridge to the kernels that find out again what the gates of a layer's forward were, and make of them the
// coefficients of its gradients (ops/rnn/backward/coefficients.h). No ATen here.
//
// The states before all steps are known, so the gates' products are two GEMMs over all steps; what is left is
// elementwise, but for the cell state of an LSTM, which is a scan over time for each row and unit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// One direction of a layer; rows are those of some steps, in order of time.
struct RecomputeDirection {
  const float* input_gates;   // [rows, gates * H]: W_ih x; LSTM: and W_hh h; RNN: not read
  const float* hidden_gates;  // GRU: [rows, 3 * H]: W_hh h
  const void* b_ih;           // [gates * H] or nullptr
  const void* b_hh;           // the same
  const void* h;        // GRU: [rows, H], the state before each step; RNN: behind each step; h_row apart
  float* coefficients;  // [rows, coefficients of the cell, H]
};

struct RecomputeParams {
  RecomputeDirection direction[2];
  int directions;
  Cell cell;
  Dtype dtype;     // of biases and h
  int64_t rows;    // > 0
  int64_t hidden;  // > 0
  int64_t h_row;
};

// The coefficients; of an LSTM only what does not depend on the cell state, the rest by launch_scan.
cudaError_t launch_recompute(const RecomputeParams& params, cudaStream_t stream);

// LSTM: the cell state, step by step in each direction's order, over coefficients that launch_recompute made.
struct ScanDirection {
  const void* c0;        // [batch, H], dtype of the tensors: before the first step
  const float* c0_fp32;  // the same in a sequence's middle; neither: zero
  float* coefficients;   // [steps, batch, coefficients, H]; nothing is written to it if c_end is given
  float* c_end;          // [batch, H]: behind the last step; nullptr: not wanted
};

struct ScanParams {
  ScanDirection direction[2];
  int directions;
  Dtype dtype;
  int64_t steps;
  int64_t batch;
  int64_t hidden;
};

cudaError_t launch_scan(const ScanParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
