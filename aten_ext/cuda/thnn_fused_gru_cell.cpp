// _thnn_fused_gru_cell on CUDA, the gates of one step: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <limits>
#include <tuple>

#include "gru_args.h"
#include "overrides.h"

#define ATEN_EXT_GRU_GATES_PARAMETERS                                                                     \
  [[maybe_unused]] const at::Tensor &input_gates, [[maybe_unused]] const at::Tensor &hidden_gates,        \
      [[maybe_unused]] const at::Tensor &hx, [[maybe_unused]] const std::optional<at::Tensor>&input_bias, \
      [[maybe_unused]] const std::optional<at::Tensor>&hidden_bias

namespace aten_ext {

const char* decline::_thnn_fused_gru_cell_cuda(ATEN_EXT_GRU_GATES_PARAMETERS) {
  if (!input_gates.defined() || !hidden_gates.defined() || !hx.defined()) {
    return "undefined tensor";
  }
  if (!is_gru_dtype(input_gates) && input_gates.scalar_type() != at::kDouble) {
    return "dtype other than float32, float16, bfloat16, float64";
  }
  if (is_given(input_bias) != is_given(hidden_bias)) {
    return "one bias of two";
  }
  for (const at::Tensor* t : {&input_gates, &hidden_gates, &hx}) {
    if (const char* reason = decline_beside(*t, input_gates)) {
      return reason;
    }
  }
  if (hx.dim() != 2 || !has_shape(input_gates, {hx.size(0), 3 * hx.size(1)}) ||
      !has_shape(hidden_gates, {hx.size(0), 3 * hx.size(1)})) {
    return "gates that do not fit the state";
  }
  if (hx.numel() == 0) {
    return "empty input";
  }
  if (hx.numel() > std::numeric_limits<int32_t>::max()) {
    return "sizes beyond 32 bits";
  }
  bool contiguous = input_gates.is_contiguous() && hidden_gates.is_contiguous() && hx.is_contiguous();
  if (is_given(input_bias)) {
    for (const at::Tensor* t : {&*input_bias, &*hidden_bias}) {
      if (const char* reason = decline_beside(*t, input_gates)) {
        return reason;
      }
      if (!has_shape(*t, {3 * hx.size(1)})) {
        return "gates that do not fit the state";
      }
      contiguous = contiguous && t->is_contiguous();
    }
  }
  return contiguous ? nullptr : "tensor that is not contiguous";
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/thnn_fused_gru_cell.h"

namespace aten_ext {
namespace {

cuda::GruGatesDtype to_gates_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return cuda::GruGatesDtype::Double;
    case at::kHalf:
      return cuda::GruGatesDtype::Half;
    case at::kBFloat16:
      return cuda::GruGatesDtype::BFloat16;
    default:
      return cuda::GruGatesDtype::Float;  // decline() lets nothing else through
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> run::_thnn_fused_gru_cell_cuda(ATEN_EXT_GRU_GATES_PARAMETERS) {
  const c10::cuda::CUDAGuard guard(hx.device());
  const at::Tensor hy = at::empty(hx.sizes(), hx.options());
  const at::Tensor workspace = at::empty({hx.size(0), 5 * hx.size(1)}, hx.options());
  cuda::GruGatesParams p{};
  p.dtype = to_gates_dtype(hx.scalar_type());
  p.input_gates = input_gates.const_data_ptr();
  p.hidden_gates = hidden_gates.const_data_ptr();
  p.input_bias = is_given(input_bias) ? input_bias->const_data_ptr() : nullptr;
  p.hidden_bias = is_given(hidden_bias) ? hidden_bias->const_data_ptr() : nullptr;
  p.hx = hx.const_data_ptr();
  p.hy = hy.mutable_data_ptr();
  p.workspace = workspace.mutable_data_ptr();
  p.batch = hx.size(0);
  p.hidden = hx.size(1);
  C10_CUDA_CHECK(cuda::launch_gru_gates(p, c10::cuda::getCurrentCUDAStream()));
  return {hy, workspace};
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
