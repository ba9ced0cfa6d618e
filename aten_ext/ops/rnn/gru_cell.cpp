// gru_cell on CUDA, a whole nn.GRUCell call in inference: when, and over what.
//
// gru_cell is composite; what comes before this key, and what a call that is differentiated, traced or
// transformed does, is in core/composite.h. The rule is compiled in a CPU build too: aten_ext.explain asks it
// about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <limits>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {
namespace {

const char* decline_cell(const args::gru_cell& a) {
  for (const at::Tensor* t : {&a.input, &a.hx, &a.w_ih, &a.w_hh}) {
    if (!t->defined()) {
      return "undefined tensor";
    }
  }
  if (!cuda::is_gru_dtype(a.input)) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (cuda::is_given(a.b_ih) != cuda::is_given(a.b_hh)) {
    return "one bias of two";
  }
  bool contiguous = true;
  for (const at::Tensor* t : {&a.input, &a.hx, &a.w_ih, &a.w_hh}) {
    if (const char* reason = cuda::decline_beside(*t, a.input)) {
      return reason;
    }
    contiguous = contiguous && t->is_contiguous();
  }
  if (a.input.dim() != 2 || a.hx.dim() != 2) {
    return "input or state that is not two-dimensional";
  }
  const int64_t batch = a.input.size(0);
  const int64_t hidden = a.hx.size(1);
  if (a.hx.size(0) != batch || !cuda::has_shape(a.w_ih, {3 * hidden, a.input.size(1)}) ||
      !cuda::has_shape(a.w_hh, {3 * hidden, hidden})) {
    return "weights that do not fit";
  }
  if (cuda::is_given(a.b_ih)) {
    for (const at::Tensor* t : {&*a.b_ih, &*a.b_hh}) {
      if (const char* reason = cuda::decline_beside(*t, a.input)) {
        return reason;
      }
      if (!cuda::has_shape(*t, {3 * hidden})) {
        return "weights that do not fit";
      }
      contiguous = contiguous && t->is_contiguous();
    }
  }
  if (a.input.numel() == 0 || a.hx.numel() == 0) {
    return "empty input";
  }
  if (!contiguous) {
    return "tensor that is not contiguous";
  }
  if (a.input.size(1) > std::numeric_limits<int32_t>::max() / 256 ||
      hidden > std::numeric_limits<int32_t>::max() / 256) {
    return "sizes beyond 32 bits";
  }
  return cuda::is_small_cell(to_dtype(a.input.scalar_type()), batch, a.input.size(1), hidden)
             ? nullptr
             : "one step of a large batch";
}

}  // namespace

Choice<cuda::CellPlan> cuda::choose(const args::gru_cell& a) {
  if (const char* reason = decline_cell(a)) {
    return reason;
  }
  CellPlan plan{};
  plan.dtype = to_dtype(a.input.scalar_type());
  plan.biases = is_given(a.b_ih);
  plan.batch = static_cast<int>(a.input.size(0));
  plan.input = static_cast<int>(a.input.size(1));
  plan.hidden = static_cast<int>(a.hx.size(1));
  plan.kernel = cell_kernel(plan.dtype, /*tf32=*/false, plan.batch, plan.input, plan.hidden,
                            /*directions=*/1);
  if (const char* reason = lacks(gpu_of(a.input.device()), plan.needs())) {
    return reason;
  }
  return plan;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/gru_cell.h"

namespace aten_ext {

Ran<at::Tensor> cuda::run(const args::gru_cell& a, const CellPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.input.device());
  const at::Tensor hy = at::empty(a.hx.sizes(), a.hx.options());
  GruCellParams p{};
  p.directions = 1;
  p.dtype = plan.dtype;
  p.batch = plan.batch;
  p.input = plan.input;
  p.hidden = plan.hidden;
  p.x_row = p.input;
  p.h_row = p.hidden;
  p.direction[0] = {a.w_ih.const_data_ptr(),  a.w_hh.const_data_ptr(), data_of(a.b_ih),       data_of(a.b_hh),
                    a.input.const_data_ptr(), a.hx.const_data_ptr(),   hy.mutable_data_ptr(), nullptr};
  const cudaError_t error = launch_gru_cell(p, plan.kernel, c10::cuda::getCurrentCUDAStream());
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return hy;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
