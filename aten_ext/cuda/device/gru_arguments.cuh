// What the kernels of a GRU layer's recurrence take, and the formula of one hidden unit.
//
// For each row b of the batch, each hidden unit i and each step t, with x the input projection W_ih *
// input[t]:
//
//   r = sigmoid(x_r + b_ir + (W_hr h + b_hr))      z = sigmoid(x_z + b_iz + (W_hz h + b_hz))
//   n = tanh(x_n + b_in + r * (W_hn h + b_hn))     h' = n + z * (h - n)
//
// (Cho et al. 2014, arXiv:1406.1078, with the bias inside the reset gate's product, as cuDNN and PyTorch have
// it.) Everything in fp32, here with the library's own exp, tanh and division; gru_gates.cuh has shorter ones
// for kernels that wait for them in each step.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

// One direction of one layer. T is the dtype of the tensors.
struct GruDirectionArguments {
  const void* w_hh;    // [3 * hidden, hidden] of T: reset, update, new
  const void* b_ih;    // [3 * hidden] of T, or nullptr
  const void* b_hh;    // [3 * hidden] of T, or nullptr
  const float* gates;  // the projections x, [steps, batch, 3 * hidden] with the strides below
  const void* h0;      // [batch, hidden] of T
  void* hy;            // [batch, hidden] of T
  void* y;             // [steps, batch, hidden] of T with the strides below
};

struct GruArguments {
  GruDirectionArguments direction[2];  // the second runs from the last step to the first
  int64_t steps;
  int64_t gate_step, gate_row;  // in elements
  int64_t y_step, y_row;
  int batch;
  int hidden;
  int groups;  // parts of the batch, each worked on by `blocks` blocks of its own
  int rows;    // of the batch in a group; the last may have fewer
  int blocks;
  int units;           // hidden units of a block; blocks * units >= hidden
  int shared_vectors;  // FMA only: vectors of 128 columns of W_hh that are kept in shared memory
  // Exchange through global memory only: [2, directions, batch, words], zero; a word is 32 bits of a row of
  // the state and the number of the step.
  uint64_t* words;
};

// Which part of the work is this block's. The blocks of a group are neighbours in the grid.
struct GruPlace {
  int direction;
  int group;
  int rank;  // in the group
  int first_row;
  int rows;
  int first_unit;
  int end_unit;
};

__device__ __forceinline__ GruPlace gru_place(const GruArguments& a) {
  GruPlace place;
  const int of_direction = static_cast<int>(blockIdx.x) / a.blocks;
  place.rank = static_cast<int>(blockIdx.x) % a.blocks;
  place.direction = of_direction / a.groups;
  place.group = of_direction % a.groups;
  place.first_row = place.group * a.rows;
  place.rows = min(a.rows, a.batch - place.first_row);
  place.first_unit = place.rank * a.units;
  place.end_unit = min(a.hidden, place.first_unit + a.units);
  return place;
}

// The step in the sequence that is worked on `step`-th.
__device__ __forceinline__ int64_t gru_time(const GruArguments& a, int direction, int64_t step) {
  return direction == 0 ? step : a.steps - 1 - step;
}

// The input's part of a unit's gates.
struct GruInput {
  float r, z, n;
};

// The biases of one unit, as they enter the formula.
struct GruBias {
  float r, z, in, hn;
};

// Of the unit, if it `exists` and the layer has biases; else zero. T is the dtype of the tensors.
template <typename T>
__device__ __forceinline__ GruBias gru_load_bias(const GruDirectionArguments& d, int hidden, int unit,
                                                 bool exists) {
  GruBias bias{0.0f, 0.0f, 0.0f, 0.0f};
  if (exists && d.b_ih != nullptr) {
    const auto* const b_ih = static_cast<const T*>(d.b_ih);
    const auto* const b_hh = static_cast<const T*>(d.b_hh);
    bias.r = to_op(b_ih[unit]) + to_op(b_hh[unit]);
    bias.z = to_op(b_ih[hidden + unit]) + to_op(b_hh[hidden + unit]);
    bias.in = to_op(b_ih[2 * hidden + unit]);
    bias.hn = to_op(b_hh[2 * hidden + unit]);
  }
  return bias;
}

__device__ __forceinline__ float gru_sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// h' of one unit from its three dot products with h.
__device__ __forceinline__ float gru_unit(const GruInput& x, float hr, float hz, float hn, const GruBias& b,
                                          float h) {
  const float r = gru_sigmoid(x.r + hr + b.r);
  const float z = gru_sigmoid(x.z + hz + b.z);
  const float n = tanhf(x.n + b.in + r * (hn + b.hn));
  return n + z * (h - n);
}

}  // namespace aten_ext::cuda
