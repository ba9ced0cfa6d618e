// gru_cell, lstm_cell, rnn_tanh_cell and rnn_relu_cell on CUDA, a whole call of nn.GRUCell, nn.LSTMCell or
// nn.RNNCell in inference: when, and over what.
//
// They are composite; what comes before this key, and what a call that is differentiated, traced or
// transformed does, is in core/composite.h. The rule is compiled in a CPU build too: aten_ext.explain asks it
// about a GPU elsewhere.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <limits>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {
namespace {

// A call of one of them.
struct CellCall {
  cuda::Cell cell;
  const at::Tensor& input;
  const at::Tensor& hx;
  const at::Tensor* cx;  // of an LSTM
  const at::Tensor& w_ih;
  const at::Tensor& w_hh;
  const std::optional<at::Tensor>& b_ih;
  const std::optional<at::Tensor>& b_hh;
};

template <class Arguments>
CellCall call_of(cuda::Cell cell, const Arguments& a) {
  return {cell, a.input, a.hx, nullptr, a.w_ih, a.w_hh, a.b_ih, a.b_hh};
}

// Upstream's products of a cell are cuBLAS's, not cuDNN's. It cannot be told not to split K, and they raise.
const char* decline_flags(at::ScalarType dtype) {
  const at::Context& context = at::globalContext();
  if ((dtype == at::kHalf && context.allowFP16ReductionCuBLAS() ==
                                 at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK) ||
      (dtype == at::kBFloat16 && context.allowBF16ReductionCuBLAS() ==
                                     at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK)) {
    return "split K is not allowed";
  }
  return nullptr;
}

const char* decline_cell(const CellCall& a) {
  const at::Tensor& cx = a.cx != nullptr ? *a.cx : a.hx;
  for (const at::Tensor* t : {&a.input, &a.hx, &cx, &a.w_ih, &a.w_hh}) {
    if (!t->defined()) {
      return "undefined tensor";
    }
  }
  if (!cuda::is_rnn_dtype(a.input)) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (cuda::is_given(a.b_ih) != cuda::is_given(a.b_hh)) {
    return "one bias of two";
  }
  bool contiguous = true;
  for (const at::Tensor* t : {&a.input, &a.hx, &cx, &a.w_ih, &a.w_hh}) {
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
  const int64_t gates = cuda::gates_of(a.cell) * hidden;
  if (a.hx.size(0) != batch || !cuda::has_shape(cx, {batch, hidden}) ||
      !cuda::has_shape(a.w_ih, {gates, a.input.size(1)}) || !cuda::has_shape(a.w_hh, {gates, hidden})) {
    return "weights that do not fit";
  }
  if (cuda::is_given(a.b_ih)) {
    for (const at::Tensor* t : {&*a.b_ih, &*a.b_hh}) {
      if (const char* reason = cuda::decline_beside(*t, a.input)) {
        return reason;
      }
      if (!cuda::has_shape(*t, {gates})) {
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
  if (const char* reason = decline_flags(a.input.scalar_type())) {
    return reason;
  }
  return cuda::is_small_cell(a.cell, to_dtype(a.input.scalar_type()), batch, a.input.size(1), hidden,
                             gpu_of(a.input.device()).multiprocessors)
             ? nullptr
             : "one step of a large batch";
}

Choice<cuda::CellPlan> choose_cell(const CellCall& a) {
  if (const char* reason = decline_cell(a)) {
    return reason;
  }
  cuda::CellPlan plan{};
  plan.cell = a.cell;
  plan.dtype = to_dtype(a.input.scalar_type());
  plan.biases = cuda::is_given(a.b_ih);
  plan.batch = static_cast<int>(a.input.size(0));
  plan.input = static_cast<int>(a.input.size(1));
  plan.hidden = static_cast<int>(a.hx.size(1));
  const Gpu& gpu = gpu_of(a.input.device());
  plan.kernel = cuda::cell_kernel(plan.cell, plan.dtype, /*tf32=*/false, plan.batch, plan.input, plan.hidden,
                                  /*directions=*/1, gpu.multiprocessors);
  if (const char* reason = lacks(gpu, plan.needs())) {
    return reason;
  }
  return plan;
}

}  // namespace

Choice<cuda::CellPlan> cuda::choose(const args::gru_cell& a) {
  return choose_cell(call_of(Cell::Gru, a));
}

Choice<cuda::CellPlan> cuda::choose(const args::lstm_cell& a) {
  if (a.hx.size() != 2) {
    return "state that is not a pair";
  }
  return choose_cell({Cell::Lstm, a.input, a.hx[0], &a.hx[1], a.w_ih, a.w_hh, a.b_ih, a.b_hh});
}

Choice<cuda::CellPlan> cuda::choose(const args::rnn_tanh_cell& a) {
  return choose_cell(call_of(Cell::RnnTanh, a));
}

Choice<cuda::CellPlan> cuda::choose(const args::rnn_relu_cell& a) {
  return choose_cell(call_of(Cell::RnnRelu, a));
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/cell_step.h"

namespace aten_ext {
namespace {

// Writes hy, and of an LSTM cy.
cudaError_t run_cell(const CellCall& a, const cuda::CellPlan& plan, const at::Tensor& hy,
                     const at::Tensor* cy) {
  cuda::CellParams p{};
  p.directions = 1;
  p.cell = plan.cell;
  p.dtype = plan.dtype;
  p.batch = plan.batch;
  p.input = plan.input;
  p.hidden = plan.hidden;
  p.x_row = p.input;
  p.h_row = p.hidden;
  cuda::CellDirection& d = p.direction[0];
  d.w_ih = a.w_ih.const_data_ptr();
  d.w_hh = a.w_hh.const_data_ptr();
  d.b_ih = cuda::data_of(a.b_ih);
  d.b_hh = cuda::data_of(a.b_hh);
  d.x = a.input.const_data_ptr();
  d.h = a.hx.const_data_ptr();
  d.hy = hy.mutable_data_ptr();
  if (cy != nullptr) {
    p.carried[0] = {a.cx->const_data_ptr(), cy->mutable_data_ptr(), nullptr, nullptr};
  }
  return cuda::launch_cell(p, plan.kernel, c10::cuda::getCurrentCUDAStream());
}

Ran<at::Tensor> run_one(const CellCall& a, const cuda::CellPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.input.device());
  const at::Tensor hy = at::empty(a.hx.sizes(), a.hx.options());
  const cudaError_t error = run_cell(a, plan, hy, nullptr);
  if (cuda::is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return hy;
}

}  // namespace

Ran<at::Tensor> cuda::run(const args::gru_cell& a, const CellPlan& plan) {
  return run_one(call_of(Cell::Gru, a), plan);
}

Ran<std::tuple<at::Tensor, at::Tensor>> cuda::run(const args::lstm_cell& a, const CellPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.input.device());
  const at::Tensor& hx = a.hx[0];
  const at::Tensor hy = at::empty(hx.sizes(), hx.options());
  const at::Tensor cy = at::empty(hx.sizes(), hx.options());
  const cudaError_t error =
      run_cell({Cell::Lstm, a.input, hx, &a.hx[1], a.w_ih, a.w_hh, a.b_ih, a.b_hh}, plan, hy, &cy);
  if (is_refusal(error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(error);
  return std::tuple{hy, cy};
}

Ran<at::Tensor> cuda::run(const args::rnn_tanh_cell& a, const CellPlan& plan) {
  return run_one(call_of(Cell::RnnTanh, a), plan);
}

Ran<at::Tensor> cuda::run(const args::rnn_relu_cell& a, const CellPlan& plan) {
  return run_one(call_of(Cell::RnnRelu, a), plan);
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
