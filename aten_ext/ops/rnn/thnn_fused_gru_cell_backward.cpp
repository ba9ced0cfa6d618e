// _thnn_fused_gru_cell_backward on CUDA, the gates of one step: when, and over what. A workspace is
// upstream's: each backward reads that of either forward.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <tuple>

#include "core/to_dtype.h"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates_rules.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {
namespace {

constexpr int64_t kSaved = 5;  // values a unit in the workspace

const char* decline_backward(const args::_thnn_fused_gru_cell_backward& a) {
  if (!a.grad_hy.defined() || !a.workspace.defined()) {
    return "undefined tensor";
  }
  if (const char* reason = cuda::decline_gates_dtype(a.grad_hy)) {
    return reason;
  }
  for (const at::Tensor* t : {&a.grad_hy, &a.workspace}) {
    if (const char* reason = cuda::decline_beside(*t, a.grad_hy)) {
      return reason;
    }
  }
  if (a.grad_hy.dim() != 2 ||
      !cuda::has_shape(a.workspace, {a.grad_hy.size(0), kSaved * a.grad_hy.size(1)})) {
    return "gates that do not fit the state";
  }
  if (const char* reason = cuda::decline_gates_size(a.grad_hy)) {
    return reason;
  }
  if (!a.workspace.is_contiguous()) {
    return "tensor that is not contiguous";
  }
  return cuda::decline_autocast(to_dtype(a.grad_hy.scalar_type()), a.has_bias);
}

}  // namespace

const char* cuda::plan_gates(const args::_thnn_fused_gru_cell_backward& a, GatesBackwardPlan& plan) {
  if (const char* reason = decline_backward(a)) {
    return reason;
  }
  const Dtype dtype = to_dtype(a.grad_hy.scalar_type());
  const int units =
      has_pairs(a.grad_hy)
          ? units_of_thread(dtype, a.grad_hy, {a.grad_hy.const_data_ptr(), a.workspace.const_data_ptr()})
          : 1;
  plan = backward_plan(dtype, a.grad_hy, a.has_bias, units);
  return nullptr;
}

Choice<cuda::GatesBackwardPlan> cuda::choose(const args::_thnn_fused_gru_cell_backward& a) {
  return choose_gates<GatesBackwardPlan>(a, kGruGatesBackward);
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/gates_results.h"
#include "ops/rnn/thnn_fused_gru_cell_backward.h"

namespace aten_ext {

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>> cuda::run(
    const args::_thnn_fused_gru_cell_backward& a, const GatesBackwardPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.grad_hy.device());
  const auto options = a.grad_hy.options();
  const at::Tensor grad_input_gates = at::empty({plan.batch, GruSizes::kGates * plan.hidden}, options);
  const at::Tensor grad_hidden_gates = at::empty({plan.batch, GruSizes::kGates * plan.hidden}, options);
  const at::Tensor grad_hx = at::empty({plan.batch, plan.hidden}, options);
  const at::Tensor grad_input_bias = empty_bias(plan, GruSizes::kGates, a.grad_hy);
  const at::Tensor grad_hidden_bias = empty_bias(plan, GruSizes::kGates, a.grad_hy);
  const at::Tensor parts = empty_parts(plan, a.grad_hy);
  GruGatesBackwardParams p{};
  p.dtype = plan.dtype;
  p.grad_hy = incoming(a.grad_hy);
  p.workspace = a.workspace.const_data_ptr();
  p.grad_input_gates = grad_input_gates.mutable_data_ptr();
  p.grad_hidden_gates = grad_hidden_gates.mutable_data_ptr();
  p.grad_hx = grad_hx.mutable_data_ptr();
  p.biases = {to_write(grad_input_bias), to_write(grad_hidden_bias), to_write(parts)};
  p.tile = plan.tile;
  p.batch = plan.batch;
  p.hidden = plan.hidden;
  const cudaError_t error = launch_gru_gates_backward(p, c10::cuda::getCurrentCUDAStream());
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return std::tuple{grad_input_gates, grad_hidden_gates, grad_hx, grad_input_bias, grad_hidden_bias};
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
