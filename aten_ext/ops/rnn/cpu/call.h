// A call of a recurrent layer on the CPU, whichever operator it came by, and what is decided about it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/choice.h"
#include "ops/rnn/cpu/product.h"
#include "ops/rnn/cpu/recurrence.h"

namespace aten_ext::cpu {

// The arguments of gru.input, gru.data, rnn_tanh.input and so on, by reference.
struct RnnArguments {
  RnnCell cell;
  const at::Tensor& data;         // [steps, batch, input], its first two swapped, or packed [rows, input]
  const at::Tensor* batch_sizes;  // of a packed sequence, or nullptr
  at::TensorList states;          // hx, and an LSTM's cx
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train, bidirectional, batch_first;
};

// How threads share a layer.
struct RnnThreads {
  bool by_units = false;  // the units of each step, one step after another; otherwise rows, through all steps
  int parts = 1;          // of the rows of one direction
};

struct CpuRnnPlan {
  RnnCell cell = RnnCell::Gru;
  int64_t layers = 0;
  int directions = 1;
  bool biases = false;
  bool batch_first = false;
  bool packed = false;
  bool differentiated = false;     // an autograd node is wanted
  bool panels = false;             // W_hh is packed; otherwise a GEMM before each step makes its product
  bool bfloat16 = false;           // the tensors'; states and gates are float32 within the call
  bool projects_as_given = false;  // x stays with the batch first; its projections, which are less, are moved
  double dropout = 0;              // between layers; 0 where there is none
  RnnThreads threads;

  std::string describe() const;
};

// The layer stack's tensors, steps outermost and dense.
struct RnnInputs {
  at::Tensor x;                        // [rows, input]; batch outermost if the plan projects as given
  std::vector<at::Tensor> states;      // hx, and an LSTM's cx: [layers * directions, batch, hidden]
  std::vector<at::Tensor> params;      // as PyTorch orders them
  std::vector<int64_t> rows, offsets;  // of each step

  int64_t hidden() const {
    return states[0].size(2);
  }
  RnnSteps steps() const {
    return {static_cast<int64_t>(rows.size()), rows[0], x.size(0), rows.data(), offsets.data()};
  }
};

struct RnnOutputs {
  at::Tensor y;                    // [rows, directions * hidden]
  std::vector<at::Tensor> states;  // hy, and an LSTM's cy
};

// What a forward keeps for its backward.
struct RnnSaved {
  std::vector<at::Tensor> layers;  // states of each layer: [rows, directions * hidden]
  std::vector<at::Tensor> kept;    // of each layer and direction; none of a plain RNN
  std::vector<at::Tensor> noise;   // by which dropout multiplied each layer's states but the last's
};

// Which gradients a backward is asked for.
struct RnnWanted {
  bool x = false;
  std::vector<bool> states, params;
};

struct RnnGradients {
  at::Tensor x;
  std::vector<at::Tensor> states, params;
};

// Parameters of layer and direction `index`: w_ih, w_hh, and where there are biases b_ih, b_hh.
inline const at::Tensor* params_of(const std::vector<at::Tensor>& params, const CpuRnnPlan& plan,
                                   int64_t index) {
  return params.data() + index * (plan.biases ? 4 : 2);
}

// Sums are as exact as upstream's, which runs an LSTM that is not packed by oneDNN.
inline const SumParts& sum_parts(const CpuRnnPlan& plan) {
  return plan.cell == RnnCell::Lstm && !plan.packed ? kPartsOfOnednn : kPartsOfComposition;
}

const RnnKernels& rnn_kernels();
bool has_rnn_kernels();

// Whether products of float32 may be made of 16 bits, by a flag of torch's.
bool has_less_precision();

// Why the mode of some thread speaks against a call whose largest product multiplies so many pairs. Asked
// last: the first time it starts the pool, as the product would.
const char* decline_mode(int64_t multiplications);

Choice<CpuRnnPlan> choose_rnn(const RnnArguments& a);

// No answer for batch sizes that are not those of a packed sequence: upstream has its own errors.
std::optional<RnnOutputs> run_rnn(const RnnArguments& a, const CpuRnnPlan& plan);

// The whole stack, below autograd. `saved`: filled where it is given.
RnnOutputs forward_layers(const RnnInputs& in, const CpuRnnPlan& plan, RnnSaved* saved);

// `grad_y` and `grad_states`: undefined where nobody asks about that output.
RnnGradients backward_layers(const RnnInputs& in, const CpuRnnPlan& plan, const RnnSaved& saved,
                             const at::Tensor& grad_y, const std::vector<at::Tensor>& grad_states,
                             const RnnWanted& wanted);

// The stack with an autograd node.
RnnOutputs differentiable_layers(const RnnInputs& in, const CpuRnnPlan& plan);

}  // namespace aten_ext::cpu
