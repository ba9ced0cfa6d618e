// Bridge between the ATen side of a recurrent layer's backward and the kernels of its sequential part
// (recurrence_backward.cu). No ATen here.
//
// Whatever does not wait for the gradient of a later step is outside: the coefficients of each step before
// it, and after it the products over all steps that make the gradients of weights, biases and input. What is
// left of a step, with dh the whole gradient of h_t and dh_{t-1} = h carry + the sum over gates and units of
// d_hidden_gates_t[g, j] * W_hh[g * H + j, :] (+ dy_{t-1}):
//   GRU:   d_n_input = A_n dh   d_n_hidden = r d_n_input   d_z = A_z dh   d_r = A_r dh   h carry = z dh
//   LSTM:  dc = dc carry + p dh   d_i = A_i dc   d_f = A_f dc   d_g = A_g dc   d_o = A_o dh   dc carry = f dc
//   RNN:   d = A dh
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/backward/coefficients.h"
#include "ops/rnn/backward/plan.h"

namespace aten_ext::cuda {

// One direction of a layer. "Later" and "earlier": in the order of the forward.
struct BackwardDirection {
  const void* w_hh;          // [gates * H, H], contiguous, dtype of the tensors
  const void* coefficients;  // [steps, B, coefficients of the cell, H], contiguous, in order of time: fp32
  const void* dy;            // [steps, B, H], dtype of the tensors, strides dy_step and dy_row; nullptr: zero
  const float* dh_in;        // [B, H]: gradient of hy, or from the later chunk; nullptr: zero
  const float* dc_in;        // LSTM only: the same of c
  void* d_hidden_gates;      // [steps, B, gates, H], contiguous, dtype of the tensors: of W_hh h + b_hh
  void* d_input_gates;       // GRU only: the same of W_ih x + b_ih, of which the new gate's alone differ
  float* dh_out;             // [B, H]: gradient of h0, or for the earlier chunk
  float* dc_out;             // LSTM only
};

struct RecurrenceBackwardParams {
  BackwardDirection direction[2];  // the second ran backwards in time, so its backward runs forwards
  int directions;
  Cell cell;
  Dtype dtype;
  bool tf32;                // as the plan was chosen with
  bool saved;               // coefficients are as a forward saved them (saved.cuh); in 16 bits, H is even
  int64_t steps;            // > 0
  int batch;                // > 0
  int hidden;               // > 0
  int64_t dy_step, dy_row;  // strides in elements; the last dimension is contiguous
  RecurrenceBackward plan;
  uint64_t* words;  // plan.words of them, zero; aligned to 16 bytes
};

// All steps of one layer, or a chunk of them, both directions, in one launch.
cudaError_t launch_recurrence_backward(const RecurrenceBackwardParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
