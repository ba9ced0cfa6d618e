// _fused_adagrad_ and its .tensor_lr overload on CUDA: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "fused_adagrad_args.h"
#include "overrides.h"

namespace aten_ext {

const char* decline::_fused_adagrad__cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(double)) {
  return decline_fused_adagrad(params, grads, state_sums, steps, grad_scale, found_inf);
}

const char* decline::_fused_adagrad__tensor_lr_cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(const at::Tensor&)) {
  const char* reason = decline_fused_adagrad(params, grads, state_sums, steps, grad_scale, found_inf);
  return reason != nullptr ? reason : decline_cuda_lr(lr, params[0].device());
}

}  // namespace aten_ext
