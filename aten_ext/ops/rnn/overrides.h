// _cudnn_rnn and its backward, the cells, and the gates of their steps with their backwards: plans, and who
// decides and runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "args.h"
#include "core/choice.h"
#include "core/needs.h"
#include "ops/rnn/cell_kernel.h"
#include "ops/rnn/cpu/overrides.h"
#include "ops/rnn/gates_backward.h"
#include "ops/rnn/plan.h"
#include "ops/rnn/training/plan.h"

namespace aten_ext::cuda {

// One step of a cell in one launch.
struct CellPlan {
  Cell cell;
  Dtype dtype;
  bool biases;
  int batch, input, hidden;
  CellKernel kernel;

  std::string describe() const {
    const bool fma = kernel.math == Math::Fma;
    return fma ? "one launch, fp32 multiply-adds, warps of a unit: " + std::to_string(kernel.split)
               : "one launch, tensor cores, loads of a warp at once: " + std::to_string(kernel.loads);
  }
  Needs needs() const {
    Needs needs;
    needs.code = code_of(kernel.math);
    return needs;
  }
};

// The gates of one step.
struct GatesPlan {
  Dtype dtype;
  bool biases;
  int units;  // of one row, that a thread has
  int64_t batch, hidden;

  std::string describe() const {
    return units == 1 ? "a unit a thread" : "two units a thread";
  }
  Needs needs() const {
    return {};
  }
};

// The backward of the gates of one step.
struct GatesBackwardPlan {
  Dtype dtype;
  bool biases;
  int64_t batch, hidden;
  GatesTile tile;

  size_t element() const {  // of arithmetic
    return dtype == Dtype::Double ? sizeof(double) : sizeof(float);
  }
  std::string describe() const {
    const std::string unit = tile.units == 1 ? "a unit a thread" : "two units a thread";
    if (!biases) {
      return unit;
    }
    return unit + (tile.parts == 1 ? ", biases in the same launch" : ", biases in two launches");
  }
  Needs needs() const {
    Needs needs;
    needs.shared_bytes = biases ? static_cast<int>(bytes_of_sums(tile, element())) : 0;
    return needs;
  }
};

Choice<RnnPlan> choose(const args::_cudnn_rnn& arguments);
Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>> run(
    const args::_cudnn_rnn& arguments, const RnnPlan& plan);

Choice<RnnBackwardPlan> choose(const args::_cudnn_rnn_backward& arguments);
Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>>> run(
    const args::_cudnn_rnn_backward& arguments, const RnnBackwardPlan& plan);
// By its reserve.
bool saved_by_ours(const args::_cudnn_rnn_backward& arguments);

Choice<CellPlan> choose(const args::gru_cell& arguments);
Ran<at::Tensor> run(const args::gru_cell& arguments, const CellPlan& plan);

Choice<CellPlan> choose(const args::lstm_cell& arguments);
Ran<std::tuple<at::Tensor, at::Tensor>> run(const args::lstm_cell& arguments, const CellPlan& plan);

Choice<CellPlan> choose(const args::rnn_tanh_cell& arguments);
Ran<at::Tensor> run(const args::rnn_tanh_cell& arguments, const CellPlan& plan);

Choice<CellPlan> choose(const args::rnn_relu_cell& arguments);
Ran<at::Tensor> run(const args::rnn_relu_cell& arguments, const CellPlan& plan);

Choice<GatesPlan> choose(const args::_thnn_fused_gru_cell& arguments);
Ran<std::tuple<at::Tensor, at::Tensor>> run(const args::_thnn_fused_gru_cell& arguments,
                                            const GatesPlan& plan);

Choice<GatesBackwardPlan> choose(const args::_thnn_fused_gru_cell_backward& arguments);
Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>> run(
    const args::_thnn_fused_gru_cell_backward& arguments, const GatesBackwardPlan& plan);

Choice<GatesPlan> choose(const args::_thnn_fused_lstm_cell& arguments);
Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor>> run(const args::_thnn_fused_lstm_cell& arguments,
                                                        const GatesPlan& plan);

Choice<GatesBackwardPlan> choose(const args::_thnn_fused_lstm_cell_backward_impl& arguments);
Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor>> run(
    const args::_thnn_fused_lstm_cell_backward_impl& arguments, const GatesBackwardPlan& plan);

}  // namespace aten_ext::cuda
