// _thnn_fused_gru_cell on CUDA, the gates of one step: when, and over what.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <tuple>

#include "core/to_dtype.h"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates_rules.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {

Choice<cuda::GatesPlan> cuda::choose(const args::_thnn_fused_gru_cell& a) {
  if (const char* reason =
          decline_gates(a.input_gates, a.hidden_gates, a.hx, a.input_bias, a.hidden_bias, GruSizes::kGates)) {
    return reason;
  }
  GatesPlan plan{};
  plan.dtype = to_dtype(a.hx.scalar_type());
  plan.biases = is_given(a.input_bias);
  plan.batch = a.hx.size(0);
  plan.hidden = a.hx.size(1);
  plan.units = units_of_thread(plan.dtype, a.hx,
                               {a.input_gates.const_data_ptr(), a.hidden_gates.const_data_ptr(),
                                a.hx.const_data_ptr(), data_of(a.input_bias), data_of(a.hidden_bias)});
  return plan;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/thnn_fused_gru_cell.h"

namespace aten_ext {

Ran<std::tuple<at::Tensor, at::Tensor>> cuda::run(const args::_thnn_fused_gru_cell& a,
                                                  const GatesPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.hx.device());
  const at::Tensor hy = at::empty(a.hx.sizes(), a.hx.options());
  const at::Tensor workspace = at::empty({plan.batch, 5 * plan.hidden}, a.hx.options());
  GruGatesParams p{};
  p.dtype = plan.dtype;
  p.input_gates = a.input_gates.const_data_ptr();
  p.hidden_gates = a.hidden_gates.const_data_ptr();
  p.input_bias = data_of(a.input_bias);
  p.hidden_bias = data_of(a.hidden_bias);
  p.hx = a.hx.const_data_ptr();
  p.hy = hy.mutable_data_ptr();
  p.workspace = workspace.mutable_data_ptr();
  p.batch = plan.batch;
  p.hidden = plan.hidden;
  const cudaError_t error = launch_gru_gates(p, plan.units, c10::cuda::getCurrentCUDAStream());
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return std::tuple{hy, workspace};
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
