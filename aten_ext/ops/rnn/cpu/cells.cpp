// gru_cell, lstm_cell, rnn_tanh_cell and rnn_relu_cell on the CPU, without gradients. PyTorch composes them
// of two products and about ten operators of a few numbers each; here the gates are one pass.
#include <ATen/autocast_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "ops/rnn/checks.h"
#include "ops/rnn/cpu/overrides.h"
#include "ops/rnn/cpu/steps.h"

namespace aten_ext::cpu {
namespace {

struct CellArguments {
  RnnCell cell;
  const at::Tensor& input;
  const at::Tensor& hx;
  const at::Tensor& cx;  // of an LSTM; otherwise hx again
  const at::Tensor& w_ih;
  const at::Tensor& w_hh;
  const std::optional<at::Tensor>& b_ih;
  const std::optional<at::Tensor>& b_hh;
};

template <class Args>
CellArguments one_state(RnnCell cell, const Args& a) {
  return {cell, a.input, a.hx, a.hx, a.w_ih, a.w_hh, a.b_ih, a.b_hh};
}

CellArguments two_states(const args::lstm_cell& a) {
  return {RnnCell::Lstm, a.input, a.hx[0], a.hx[1], a.w_ih, a.w_hh, a.b_ih, a.b_hh};
}

const char* decline_shapes(const CellArguments& a) {
  if (a.input.dim() != 2 || a.hx.dim() != 2) {
    return "input or state that is not two-dimensional";
  }
  if (a.input.numel() == 0 || a.hx.numel() == 0) {
    return "empty input";
  }
  const int64_t hidden = a.hx.size(1);
  const int64_t gates = gates_of(a.cell) * hidden;
  const bool fits =
      a.hx.size(0) == a.input.size(0) && a.cx.sizes() == a.hx.sizes() &&
      cuda::has_shape(a.w_ih, {gates, a.input.size(1)}) && cuda::has_shape(a.w_hh, {gates, hidden}) &&
      (!cuda::is_given(a.b_ih) || (cuda::has_shape(*a.b_ih, {gates}) && cuda::has_shape(*a.b_hh, {gates})));
  return fits ? nullptr : "weights that do not fit";
}

const char* decline_cell(const CellArguments& a) {
  if (!has_rnn_kernels()) {
    return "CPU without AVX2";
  }
  if (!a.input.defined()) {
    return "undefined tensor";
  }
  const at::ScalarType dtype = a.input.scalar_type();
  if (dtype != at::kFloat && dtype != at::kBFloat16) {
    return "dtype other than float32, bfloat16";
  }
  if (cuda::is_given(a.b_ih) != cuda::is_given(a.b_hh)) {
    return "one bias of two";
  }
  for (const at::Tensor* t : {&a.input, &a.hx, &a.cx, &a.w_ih, &a.w_hh}) {
    if (const char* reason = cuda::decline_beside(*t, a.input)) {
      return reason;
    }
  }
  if (cuda::is_given(a.b_ih)) {
    for (const at::Tensor* t : {&*a.b_ih, &*a.b_hh}) {
      if (const char* reason = cuda::decline_beside(*t, a.input)) {
        return reason;
      }
    }
  }
  if (const char* reason = decline_shapes(a)) {
    return reason;
  }
  if (dtype == at::kBFloat16 && a.cell != RnnCell::Gru) {
    return "cell of bfloat16 other than a GRU's";
  }
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    return "autocast";
  }
  return has_less_precision() ? "products of float32 in less precision" : nullptr;
}

// Multiply-adds of a GRU's cell of bf16 from which it takes as long as its products, which are upstream's
// too: 0.96 to 1.01 of upstream's speed on two processors.
constexpr double kManyProducts = 100e6;

Choice<CpuCellPlan> choose_cell(const CellArguments& a) {
  if (const char* reason = decline_cell(a)) {
    return reason;
  }
  const double products =
      static_cast<double>(a.w_ih.size(0)) * static_cast<double>(a.input.numel() + a.hx.numel());
  if (a.input.scalar_type() == at::kBFloat16 && products > kManyProducts) {
    return "large cell of bfloat16";
  }
  if (const char* reason = decline_mode(a.w_ih.size(0) * std::max(a.input.numel(), a.hx.numel()))) {
    return reason;
  }
  return CpuCellPlan{a.cell, a.input.scalar_type() == at::kBFloat16};
}

// hy, and an LSTM's cy.
RnnResults run_cell(const CellArguments& a, const CpuCellPlan& plan) {
  const at::ScalarType dtype = a.input.scalar_type();
  const at::Tensor before = a.hx.to(at::kFloat).contiguous();
  // Of 16 bits both products are rounded with their biases, as upstream's are.
  const bool given = cuda::is_given(a.b_ih);
  const at::Tensor of_x =
      (given ? at::addmm(*a.b_ih, a.input, a.w_ih.t()) : at::mm(a.input, a.w_ih.t())).to(at::kFloat);
  const at::Tensor of_h =
      (given ? at::addmm(*a.b_hh, a.hx, a.w_hh.t()) : at::mm(a.hx, a.w_hh.t())).to(at::kFloat);
  const int64_t rows = before.size(0);
  const int64_t first = 0;
  RnnForward p;
  p.cell = plan.cell;
  p.hidden = before.size(1);
  p.steps = {1, rows, rows, &rows, &first};
  p.weights.product = of_h.const_data_ptr<float>();
  p.projections = of_x.const_data_ptr<float>();
  p.first_state = before.const_data_ptr<float>();
  const at::Tensor hy = at::empty(before.sizes(), before.options());
  p.states = hy.mutable_data_ptr<float>();
  p.states_row = p.hidden;
  at::Tensor cy;
  if (plan.cell == RnnCell::Lstm) {
    cy = a.cx.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
    p.cell_state = cy.mutable_data_ptr<float>();
  }
  const RnnKernels& kernels = rnn_kernels();
  const int64_t blocks = kernels.forward_blocks(plan.cell, p.hidden);
  for_rows(1, rows, gates_of(plan.cell) * p.hidden, [&](int64_t /*direction*/, RnnRange of_rows) {
    kernels.forward_step(p, 0, of_rows, {0, blocks});
  });
  return {hy.to(dtype), cy.defined() ? cy.to(dtype) : cy};
}

}  // namespace

std::string CpuCellPlan::describe() const {
  return bfloat16 ? "two GEMMs of bfloat16 and a pass over the gates" : "two GEMMs and a pass over the gates";
}

#define ATEN_EXT_RNN_CELL(op, cell)                                  \
  Choice<CpuCellPlan> choose(const args::op& a) {                    \
    return choose_cell(one_state(RnnCell::cell, a));                 \
  }                                                                  \
  Ran<at::Tensor> run(const args::op& a, const CpuCellPlan& plan) {  \
    return std::get<0>(run_cell(one_state(RnnCell::cell, a), plan)); \
  }
ATEN_EXT_RNN_CELL(gru_cell, Gru)
ATEN_EXT_RNN_CELL(rnn_tanh_cell, Tanh)
ATEN_EXT_RNN_CELL(rnn_relu_cell, Relu)
#undef ATEN_EXT_RNN_CELL

Choice<CpuCellPlan> choose(const args::lstm_cell& a) {
  if (a.hx.size() != 2) {
    return "state that is not a pair";
  }
  return choose_cell(two_states(a));
}

Ran<RnnResults> run(const args::lstm_cell& a, const CpuCellPlan& plan) {
  return run_cell(two_states(a), plan);
}

}  // namespace aten_ext::cpu
