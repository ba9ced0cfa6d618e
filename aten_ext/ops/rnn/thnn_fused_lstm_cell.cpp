// _thnn_fused_lstm_cell and its backward on CUDA, the gates of one step: when, and over what.
//
// _thnn_fused_lstm_cell_backward, which autograd calls, is composite: _thnn_fused_lstm_cell_backward_impl is
// its kernel. A workspace is upstream's: each backward reads that of either forward.
//
// The rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <tuple>

#include "core/to_dtype.h"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates_rules.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {
namespace {

const char* decline_backward(const args::_thnn_fused_lstm_cell_backward_impl& a) {
  if (!cuda::is_given(a.grad_hy) && !cuda::is_given(a.grad_cy)) {
    return "no gradient";
  }
  if (!a.cx.defined() || !a.cy.defined() || !a.workspace.defined()) {
    return "undefined tensor";
  }
  if (const char* reason = cuda::decline_gates_dtype(a.workspace)) {
    return reason;
  }
  for (const at::Tensor* t : {&a.cx, &a.cy, &a.workspace}) {
    if (const char* reason = cuda::decline_beside(*t, a.workspace)) {
      return reason;
    }
  }
  if (a.cx.dim() != 2 || a.cy.sizes() != a.cx.sizes() ||
      !cuda::has_shape(a.workspace, {a.cx.size(0), cuda::LstmSizes::kGates * a.cx.size(1)})) {
    return "gates that do not fit the state";
  }
  for (const std::optional<at::Tensor>* grad : {&a.grad_hy, &a.grad_cy}) {
    if (!cuda::is_given(*grad)) {
      continue;
    }
    if (const char* reason = cuda::decline_beside(**grad, a.workspace)) {
      return reason;
    }
    if ((*grad)->sizes() != a.cx.sizes()) {
      return "gradient of another size";
    }
  }
  if (const char* reason = cuda::decline_gates_size(a.cx)) {
    return reason;
  }
  if (!a.cx.is_contiguous() || !a.cy.is_contiguous() || !a.workspace.is_contiguous()) {
    return "tensor that is not contiguous";
  }
  return cuda::decline_autocast(to_dtype(a.cx.scalar_type()), a.has_bias);
}

}  // namespace

const char* cuda::plan_gates(const args::_thnn_fused_lstm_cell& a, GatesPlan& plan) {
  if (const char* reason = decline_gates(a.input_gates, a.hidden_gates, a.cx, a.input_bias, a.hidden_bias,
                                         LstmSizes::kGates)) {
    return reason;
  }
  plan.dtype = to_dtype(a.cx.scalar_type());
  plan.biases = is_given(a.input_bias);
  plan.batch = a.cx.size(0);
  plan.hidden = a.cx.size(1);
  plan.units = units_of_thread(plan.dtype, a.cx,
                               {a.input_gates.const_data_ptr(), a.hidden_gates.const_data_ptr(),
                                a.cx.const_data_ptr(), data_of(a.input_bias), data_of(a.hidden_bias)});
  return nullptr;
}

const char* cuda::plan_gates(const args::_thnn_fused_lstm_cell_backward_impl& a, GatesBackwardPlan& plan) {
  if (const char* reason = decline_backward(a)) {
    return reason;
  }
  const Dtype dtype = to_dtype(a.cx.scalar_type());
  const bool pairs = has_pairs(a.grad_hy) && has_pairs(a.grad_cy);
  const int units =
      pairs ? units_of_thread(dtype, a.cx,
                              {a.cx.const_data_ptr(), a.cy.const_data_ptr(), a.workspace.const_data_ptr(),
                               data_of(a.grad_hy), data_of(a.grad_cy)})
            : 1;
  plan = backward_plan(dtype, a.cx, a.has_bias, units);
  return nullptr;
}

Choice<cuda::GatesPlan> cuda::choose(const args::_thnn_fused_lstm_cell& a) {
  return choose_gates<GatesPlan>(a, kLstmGates);
}

Choice<cuda::GatesBackwardPlan> cuda::choose(const args::_thnn_fused_lstm_cell_backward_impl& a) {
  return choose_gates<GatesBackwardPlan>(a, kLstmGatesBackward);
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/gates_results.h"
#include "ops/rnn/thnn_fused_lstm_cell.h"

namespace aten_ext {

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor>> cuda::run(const args::_thnn_fused_lstm_cell& a,
                                                              const GatesPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.cx.device());
  const at::Tensor hy = at::empty(a.cx.sizes(), a.cx.options());
  const at::Tensor cy = at::empty(a.cx.sizes(), a.cx.options());
  const at::Tensor workspace = at::empty({plan.batch, LstmSizes::kGates * plan.hidden}, a.cx.options());
  LstmGatesParams p{};
  p.dtype = plan.dtype;
  p.input_gates = a.input_gates.const_data_ptr();
  p.hidden_gates = a.hidden_gates.const_data_ptr();
  p.input_bias = data_of(a.input_bias);
  p.hidden_bias = data_of(a.hidden_bias);
  p.cx = a.cx.const_data_ptr();
  p.hy = hy.mutable_data_ptr();
  p.cy = cy.mutable_data_ptr();
  p.workspace = workspace.mutable_data_ptr();
  p.batch = plan.batch;
  p.hidden = plan.hidden;
  const cudaError_t error = launch_lstm_gates(p, plan.units, c10::cuda::getCurrentCUDAStream());
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return std::tuple{hy, cy, workspace};
}

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor>> cuda::run(
    const args::_thnn_fused_lstm_cell_backward_impl& a, const GatesBackwardPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.cx.device());
  const at::Tensor grad_gates = at::empty(a.workspace.sizes(), a.workspace.options());
  const at::Tensor grad_cx = at::empty(a.cx.sizes(), a.cx.options());
  const at::Tensor grad_bias = empty_bias(plan, LstmSizes::kGates, a.cx);
  const at::Tensor parts = empty_parts(plan, a.cx);
  LstmGatesBackwardParams p{};
  p.dtype = plan.dtype;
  p.grad_hy = incoming(a.grad_hy);
  p.grad_cy = incoming(a.grad_cy);
  p.cx = a.cx.const_data_ptr();
  p.cy = a.cy.const_data_ptr();
  p.workspace = a.workspace.const_data_ptr();
  p.grad_gates = grad_gates.mutable_data_ptr();
  p.grad_cx = grad_cx.mutable_data_ptr();
  p.biases = {to_write(grad_bias), nullptr, to_write(parts)};
  p.tile = plan.tile;
  p.batch = plan.batch;
  p.hidden = plan.hidden;
  const cudaError_t error = launch_lstm_gates_backward(p, c10::cuda::getCurrentCUDAStream());
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return std::tuple{grad_gates, grad_cx, grad_bias};
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
