// Layers and cells of GRU, RNN and LSTM on the CPU: who decides and runs. One plan for all layers, one for
// all cells.
#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "args.h"
#include "core/choice.h"
#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {

using RnnResults = std::tuple<at::Tensor, at::Tensor>;
using LstmResults = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// One step of a cell without gradients: both products by PyTorch's own GEMMs, then the gates in one pass.
struct CpuCellPlan {
  RnnCell cell = RnnCell::Gru;
  bool bfloat16 = false;
  std::string describe() const;
};

// clang-format off
#define ATEN_EXT_RNN_CELL(op, Results)            \
  Choice<CpuCellPlan> choose(const args::op& a);  \
  Ran<Results> run(const args::op& a, const CpuCellPlan& plan);
#define ATEN_EXT_RNN(op, Results)                    \
  Choice<CpuRnnPlan> choose(const args::op& a);      \
  Ran<Results> run(const args::op& a, const CpuRnnPlan& plan);
ATEN_EXT_RNN(gru_input, RnnResults)
ATEN_EXT_RNN(gru_data, RnnResults)
ATEN_EXT_RNN(rnn_tanh_input, RnnResults)
ATEN_EXT_RNN(rnn_tanh_data, RnnResults)
ATEN_EXT_RNN(rnn_relu_input, RnnResults)
ATEN_EXT_RNN(rnn_relu_data, RnnResults)
ATEN_EXT_RNN(lstm_input, LstmResults)
ATEN_EXT_RNN(lstm_data, LstmResults)
#undef ATEN_EXT_RNN

ATEN_EXT_RNN_CELL(gru_cell, at::Tensor)
ATEN_EXT_RNN_CELL(rnn_tanh_cell, at::Tensor)
ATEN_EXT_RNN_CELL(rnn_relu_cell, at::Tensor)
ATEN_EXT_RNN_CELL(lstm_cell, RnnResults)
#undef ATEN_EXT_RNN_CELL
// clang-format on

}  // namespace aten_ext::cpu
