// _fused_adagrad_ and its .tensor_lr overload on CUDA: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "fused_adagrad_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

// Upstream's kernel (2.11) writes unscaled gradients back for tensors whose memory or number of elements is
// not a multiple of four elements, and leaves those of all others as they are.
const char* decline_on_cuda(at::TensorList params, at::TensorList grads, at::TensorList state_sums,
                            at::TensorList steps, const std::optional<at::Tensor>& grad_scale,
                            const std::optional<at::Tensor>& found_inf) {
  const char* reason = decline_fused_adagrad(params, grads, state_sums, steps, grad_scale, found_inf);
  if (reason == nullptr && grad_scale.has_value() && grad_scale->defined()) {
    return "grad_scale, which upstream writes back to some gradients only";
  }
  return reason;
}

}  // namespace

const char* decline::_fused_adagrad__cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(double)) {
  return decline_on_cuda(params, grads, state_sums, steps, grad_scale, found_inf);
}

const char* decline::_fused_adagrad__tensor_lr_cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(const at::Tensor&)) {
  const char* reason = decline_on_cuda(params, grads, state_sums, steps, grad_scale, found_inf);
  return reason != nullptr ? reason : decline_cuda_lr(lr, params[0].device());
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cuda/fused_adagrad.h"

namespace aten_ext {
namespace {

void run_fused_adagrad(at::TensorList params, at::TensorList grads, at::TensorList state_sums,
                       at::TensorList steps, const FusedAdagradScalars& scalars, const float* lr_pointer,
                       const std::optional<at::Tensor>& grad_scale,
                       const std::optional<at::Tensor>& found_inf) {
  const c10::cuda::CUDAGuard guard(params[0].device());
  std::vector<cuda::FlatTensors<cuda::kAdagradLists>> tensors;
  tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[cuda::kStateSum] = state_sums[i].mutable_data_ptr();
    row.step = static_cast<const float*>(steps[i].const_data_ptr());
    return row;
  });

  cuda::FusedAdagradParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.maximize = scalars.maximize;
  p.lr = scalars.lr;
  p.lr_decay = scalars.lr_decay;
  p.weight_decay = scalars.weight_decay;
  p.eps = scalars.eps;
  p.lr_pointer = lr_pointer;
  p.grad_scale = float_pointer(grad_scale);
  p.found_inf = float_pointer(found_inf);
  C10_CUDA_CHECK(cuda::launch_fused_adagrad(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

void run::_fused_adagrad__cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(double)) {
  run_fused_adagrad(params, grads, state_sums, steps, {lr, lr_decay, weight_decay, eps, maximize}, nullptr,
                    grad_scale, found_inf);
}

void run::_fused_adagrad__tensor_lr_cuda(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(const at::Tensor&)) {
  const bool on_host = lr.is_cpu();
  run_fused_adagrad(params, grads, state_sums, steps,
                    {on_host ? lr.item().toDouble() : 0.0, lr_decay, weight_decay, eps, maximize},
                    on_host ? nullptr : lr.const_data_ptr<float>(), grad_scale, found_inf);
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
