// Bridge to the kernel that makes the gradients of one step's gates (step.cu), where the sequential part of a
// backward is a product and this for each step. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// One direction, one step.
struct StepDirection {
  const float* coefficients;  // [batch, coefficients of the cell, H]
  const void* dy;             // [batch, H], dy_row apart, dtype of the tensors; nullptr: zero
  const void* d_hy;           // [batch, H], dtype of the tensors: the gradient of hy; nullptr: zero
  const void* d_cy;           // LSTM: the same of cy
  void* d_hidden_gates;       // [batch, gates, H], dtype of the tensors
  void* d_input_gates;        // GRU: the same; else nullptr
  float* dh;  // [batch, H]: read but at the first step; written is the part of the state's gradient that does
              // not go through the product, if the cell has one (GRU)
  float* dc;  // LSTM: [batch, H], likewise
};

struct StepParams {
  StepDirection direction[2];
  int directions;
  Cell cell;
  Dtype dtype;
  bool first;      // in the order of the backward: d_hy and d_cy instead of dh and dc
  int64_t batch;   // > 0
  int64_t hidden;  // > 0
  int64_t dy_row;
};

cudaError_t launch_step(const StepParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
