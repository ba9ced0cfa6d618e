// gru_cell on CUDA, a whole nn.GRUCell call in inference: when, and over what.
//
// gru_cell is composite; what comes before this key, and what a call that is differentiated, traced or
// transformed does, is in composite.h. The decline rules are compiled in a CPU build too: aten_ext.explain
// asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <limits>

#include "cuda/gru_plan.h"
#include "gru_args.h"
#include "overrides.h"

#define ATEN_EXT_GRU_CELL_PARAMETERS                                                    \
  [[maybe_unused]] const at::Tensor &input, [[maybe_unused]] const at::Tensor &hx,      \
      [[maybe_unused]] const at::Tensor &w_ih, [[maybe_unused]] const at::Tensor &w_hh, \
      [[maybe_unused]] const std::optional<at::Tensor>&b_ih,                            \
      [[maybe_unused]] const std::optional<at::Tensor>&b_hh

namespace aten_ext {

const char* decline::gru_cell_cuda(ATEN_EXT_GRU_CELL_PARAMETERS) {
  for (const at::Tensor* t : {&input, &hx, &w_ih, &w_hh}) {
    if (!t->defined()) {
      return "undefined tensor";
    }
  }
  if (!is_gru_dtype(input)) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (is_given(b_ih) != is_given(b_hh)) {
    return "one bias of two";
  }
  bool contiguous = true;
  for (const at::Tensor* t : {&input, &hx, &w_ih, &w_hh}) {
    if (const char* reason = decline_beside(*t, input)) {
      return reason;
    }
    contiguous = contiguous && t->is_contiguous();
  }
  if (input.dim() != 2 || hx.dim() != 2) {
    return "input or state that is not two-dimensional";
  }
  const int64_t batch = input.size(0);
  const int64_t hidden = hx.size(1);
  if (hx.size(0) != batch || !has_shape(w_ih, {3 * hidden, input.size(1)}) ||
      !has_shape(w_hh, {3 * hidden, hidden})) {
    return "weights that do not fit";
  }
  if (is_given(b_ih)) {
    for (const at::Tensor* t : {&*b_ih, &*b_hh}) {
      if (const char* reason = decline_beside(*t, input)) {
        return reason;
      }
      if (!has_shape(*t, {3 * hidden})) {
        return "weights that do not fit";
      }
      contiguous = contiguous && t->is_contiguous();
    }
  }
  if (input.numel() == 0 || hx.numel() == 0) {
    return "empty input";
  }
  if (!contiguous) {
    return "tensor that is not contiguous";
  }
  if (input.size(1) > std::numeric_limits<int32_t>::max() / 256 ||
      hidden > std::numeric_limits<int32_t>::max() / 256) {
    return "sizes beyond 32 bits";
  }
  return is_small_cell(input.scalar_type() != at::kFloat, batch, input.size(1), hidden)
             ? nullptr
             : "one step of a large batch";
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/gru_cell.h"

namespace aten_ext {

at::Tensor run::gru_cell_cuda(ATEN_EXT_GRU_CELL_PARAMETERS) {
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor hy = at::empty(hx.sizes(), hx.options());
  cuda::GruCellParams p{};
  p.directions = 1;
  p.dtype = input.scalar_type() == at::kHalf       ? cuda::GruCellDtype::Half
            : input.scalar_type() == at::kBFloat16 ? cuda::GruCellDtype::BFloat16
                                                   : cuda::GruCellDtype::Float;
  p.batch = static_cast<int>(input.size(0));
  p.input = static_cast<int>(input.size(1));
  p.hidden = static_cast<int>(hx.size(1));
  p.x_row = p.input;
  p.h_row = p.hidden;
  p.direction[0] = {w_ih.const_data_ptr(),
                    w_hh.const_data_ptr(),
                    is_given(b_ih) ? b_ih->const_data_ptr() : nullptr,
                    is_given(b_hh) ? b_hh->const_data_ptr() : nullptr,
                    input.const_data_ptr(),
                    hx.const_data_ptr(),
                    hy.mutable_data_ptr(),
                    nullptr};
  C10_CUDA_CHECK(cuda::launch_gru_cell(p, c10::cuda::getCurrentCUDAStream()));
  return hy;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
