// _thnn_fused_gru_cell on CUDA, the gates of one step: when, and over what.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <tuple>

#include "core/to_dtype.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {
namespace {

// Units (batch * hidden) from which a thread takes two.
int64_t pairs_from(Dtype dtype) {
  return dtype == Dtype::Float ? 0 : dtype == Dtype::Double ? std::numeric_limits<int64_t>::max() : 200'000;
}

const char* decline_gates(const args::_thnn_fused_gru_cell& a) {
  if (!a.input_gates.defined() || !a.hidden_gates.defined() || !a.hx.defined()) {
    return "undefined tensor";
  }
  if (!cuda::is_rnn_dtype(a.input_gates) && a.input_gates.scalar_type() != at::kDouble) {
    return "dtype other than float32, float16, bfloat16, float64";
  }
  if (cuda::is_given(a.input_bias) != cuda::is_given(a.hidden_bias)) {
    return "one bias of two";
  }
  for (const at::Tensor* t : {&a.input_gates, &a.hidden_gates, &a.hx}) {
    if (const char* reason = cuda::decline_beside(*t, a.input_gates)) {
      return reason;
    }
  }
  const at::Tensor& hx = a.hx;
  if (hx.dim() != 2 || !cuda::has_shape(a.input_gates, {hx.size(0), 3 * hx.size(1)}) ||
      !cuda::has_shape(a.hidden_gates, {hx.size(0), 3 * hx.size(1)})) {
    return "gates that do not fit the state";
  }
  if (hx.numel() == 0) {
    return "empty input";
  }
  if (hx.numel() > std::numeric_limits<int32_t>::max()) {
    return "sizes beyond 32 bits";
  }
  bool contiguous = a.input_gates.is_contiguous() && a.hidden_gates.is_contiguous() && hx.is_contiguous();
  if (cuda::is_given(a.input_bias)) {
    for (const at::Tensor* t : {&*a.input_bias, &*a.hidden_bias}) {
      if (const char* reason = cuda::decline_beside(*t, a.input_gates)) {
        return reason;
      }
      if (!cuda::has_shape(*t, {3 * hx.size(1)})) {
        return "gates that do not fit the state";
      }
      contiguous = contiguous && t->is_contiguous();
    }
  }
  return contiguous ? nullptr : "tensor that is not contiguous";
}

// Whether two elements are one load everywhere. Results come from the allocator, which aligns to more.
bool is_aligned_to_pairs(const args::_thnn_fused_gru_cell& a) {
  uintptr_t bits = 0;
  for (const void* pointer :
       {a.input_gates.const_data_ptr(), a.hidden_gates.const_data_ptr(), a.hx.const_data_ptr(),
        cuda::data_of(a.input_bias), cuda::data_of(a.hidden_bias)}) {
    bits |= reinterpret_cast<uintptr_t>(pointer);  // nothing of nullptr
  }
  return bits % (2 * a.hx.element_size()) == 0;
}

}  // namespace

Choice<cuda::GatesPlan> cuda::choose(const args::_thnn_fused_gru_cell& a) {
  if (const char* reason = decline_gates(a)) {
    return reason;
  }
  GatesPlan plan{};
  plan.dtype = to_dtype(a.hx.scalar_type());
  plan.biases = is_given(a.input_bias);
  plan.batch = a.hx.size(0);
  plan.hidden = a.hx.size(1);
  const bool pairs = plan.hidden % 2 == 0 && a.hx.numel() >= pairs_from(plan.dtype) && is_aligned_to_pairs(a);
  plan.units = pairs ? 2 : 1;
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
