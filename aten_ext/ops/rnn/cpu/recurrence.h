// Bridge between the ATen side of recurrent layers on the CPU and the kernels, which are compiled for several
// instruction sets (forward_kernel.cpp, backward_kernel.cpp). No ATen here.
//
// A kernel does the part of a layer that is sequential: the product with W_hh and the gates. All else is a
// GEMM over all steps. Rows of the batch never meet, so a thread can take some of them through all steps;
// where rows are few, threads share the units of one step instead.
#pragma once

#include <cstdint>

namespace aten_ext::cpu {

enum class RnnCell : std::uint8_t { Gru, Lstm, Tanh, Relu };

// Blocks of W_hh's rows, in PyTorch's order: r, z, n of a GRU; i, f, g, o of an LSTM.
constexpr int gates_of(RnnCell cell) {
  return cell == RnnCell::Gru ? 3 : cell == RnnCell::Lstm ? 4 : 1;
}

// What a forward keeps of each row, step and unit for the backward, beside the states: r, z, n and
// W_hn h + b_hn of a GRU; i, f, g, o and the cell state of an LSTM.
constexpr int kept_of(RnnCell cell) {
  return cell == RnnCell::Gru ? 4 : cell == RnnCell::Lstm ? 5 : 0;
}

// Steps lie one behind another, rows of a step likewise. No step has more rows than the one before (packed
// sequences are sorted so).
struct RnnSteps {
  int64_t count = 0;
  int64_t batch = 0;                 // rows of the first step
  int64_t total = 0;                 // rows of all
  const int64_t* rows = nullptr;     // [count]
  const int64_t* offsets = nullptr;  // [count]: first row of each
};

// W_hh as a kernel reads it: panels of a few vectors' width (`panels`), or the product that a GEMM has made
// before the step (`product`, one row for each row of the batch).
struct RnnWeights {
  const float* panels = nullptr;
  const float* product = nullptr;
};

// One direction of a layer. Matrices are row-major; those without a row length of their own are dense.
struct RnnForward {
  RnnCell cell = RnnCell::Gru;
  bool reverse = false;
  int64_t hidden = 0;
  RnnSteps steps;
  RnnWeights weights;
  const float* projections = nullptr;  // [total, gates * hidden]: x W_ih
  const float* input_bias = nullptr;   // [gates * hidden], or none: the projections have it already
  const float* bias = nullptr;         // [gates * hidden], or none
  const float* first_state = nullptr;  // [batch, hidden]
  float* cell_state = nullptr;         // [batch, hidden], LSTM: the first at first, in the end the last
  float* states = nullptr;             // [total, states_row]
  float* output = nullptr;             // [total, states_row], a second copy of them, or none
  int64_t states_row = 0;
  float* kept = nullptr;  // [total, kept * hidden], or none
};

struct RnnBackward {
  RnnCell cell = RnnCell::Gru;
  bool reverse = false;
  int64_t hidden = 0;
  RnnSteps steps;
  RnnWeights weights;
  const float* states = nullptr;       // [total, states_row]
  const float* grad_output = nullptr;  // [total, states_row], or none
  int64_t states_row = 0;
  const float* kept = nullptr;             // [total, kept * hidden]
  const float* first_state = nullptr;      // [batch, hidden]
  const float* first_cell = nullptr;       // [batch, hidden], LSTM
  const float* grad_last_state = nullptr;  // [batch, hidden], or none
  const float* grad_last_cell = nullptr;   // [batch, hidden], or none
  float* carried = nullptr;                // [batch, hidden]: what reaches the step before past the product;
                                           // in the end the gradient of an LSTM's first cell state
  float* grad_input_gates = nullptr;       // [total, gates * hidden]: of the sums with x
  float* grad_hidden_gates = nullptr;  // the same of those with h; a GRU's differ in n, others are one array
  float* grad_first_state = nullptr;   // [batch, hidden]
};

struct RnnRange {
  int64_t begin, end;
};

// What one instruction set has. Blocks are those of units: `blocks` of them in a step.
struct RnnKernels {
  int64_t (*forward_blocks)(RnnCell cell, int64_t hidden);
  int64_t (*forward_block_size)(RnnCell cell, int64_t hidden);  // floats of a panel
  void (*pack_forward)(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks);
  // One step `t` for some rows and some blocks. All blocks of the step before must be done.
  void (*forward_step)(const RnnForward& p, int64_t t, RnnRange rows, RnnRange blocks);

  int64_t (*backward_blocks)(int64_t hidden);
  int64_t (*backward_block_size)(RnnCell cell, int64_t hidden);
  void (*pack_backward)(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks);
  void (*backward_step)(const RnnBackward& p, int64_t t, RnnRange rows, RnnRange blocks);
  // After all steps: the gradient of the first state.
  void (*backward_first)(const RnnBackward& p, RnnRange rows, RnnRange blocks);
};

#if defined(__x86_64__)
namespace AVX2 {
extern const RnnKernels kRnnKernels;
}
namespace AVX512 {
extern const RnnKernels kRnnKernels;
}
#endif

}  // namespace aten_ext::cpu
