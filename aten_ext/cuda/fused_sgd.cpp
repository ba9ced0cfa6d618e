// _fused_sgd_ and its .tensor_lr overload on CUDA: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "fused_sgd_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

const char* decline_on_cuda(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
                            double momentum, bool is_first_step, const std::optional<at::Tensor>& grad_scale,
                            const std::optional<at::Tensor>& found_inf) {
  if (momentum == 0 && is_first_step) {
    return "is_first_step without momentum, of which upstream warns";
  }
  if (momentum != 0 && !(momentum > 0)) {
    return "momentum below 0";
  }
  return decline_fused_sgd(params, grads, momentum_buffers, momentum, grad_scale, found_inf);
}

}  // namespace

const char* decline::_fused_sgd__cuda(ATEN_EXT_FUSED_SGD_PARAMETERS(double)) {
  return decline_on_cuda(params, grads, momentum_buffers, momentum, is_first_step, grad_scale, found_inf);
}

const char* decline::_fused_sgd__tensor_lr_cuda(ATEN_EXT_FUSED_SGD_PARAMETERS(const at::Tensor&)) {
  const char* reason =
      decline_on_cuda(params, grads, momentum_buffers, momentum, is_first_step, grad_scale, found_inf);
  return reason != nullptr ? reason : decline_cuda_lr(lr, params[0].device());
}

}  // namespace aten_ext
