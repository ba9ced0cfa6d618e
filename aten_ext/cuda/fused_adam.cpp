// _fused_adam_, _fused_adamw_ and their .tensor_lr overloads on CUDA: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "fused_adam_args.h"
#include "overrides.h"

namespace aten_ext {
#define ATEN_EXT_FUSED_ADAM_CUDA_DECLINE(name)                                                            \
  const char* decline::name##_cuda(ATEN_EXT_FUSED_ADAM_PARAMETERS(double)) {                              \
    return decline_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, amsgrad,      \
                              grad_scale, found_inf);                                                     \
  }                                                                                                       \
  const char* decline::name##_tensor_lr_cuda(ATEN_EXT_FUSED_ADAM_PARAMETERS(const at::Tensor&)) {         \
    const char* reason = decline_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, \
                                            amsgrad, grad_scale, found_inf);                              \
    return reason != nullptr ? reason : decline_cuda_lr(lr, params[0].device());                          \
  }

ATEN_EXT_FUSED_ADAM_CUDA_DECLINE(_fused_adamw_)
ATEN_EXT_FUSED_ADAM_CUDA_DECLINE(_fused_adam_)

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cuda/fused_adam.h"

namespace aten_ext {
namespace {

using cuda::FusedAdamParams;

void run_fused_adam(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                    at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList steps,
                    const FusedAdamScalars& scalars, const float* lr_pointer,
                    const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  const c10::cuda::CUDAGuard guard(params[0].device());
  std::vector<cuda::FlatTensors<cuda::kAdamLists>> tensors;
  tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[cuda::kExpAvg] = exp_avgs[i].mutable_data_ptr();
    row.data[cuda::kExpAvgSq] = exp_avg_sqs[i].mutable_data_ptr();
    row.data[cuda::kMaxExpAvgSq] = scalars.amsgrad ? max_exp_avg_sqs[i].mutable_data_ptr() : nullptr;
    row.step = static_cast<const float*>(steps[i].const_data_ptr());
    return row;
  });

  FusedAdamParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.decoupled = scalars.decoupled;
  p.amsgrad = scalars.amsgrad;
  p.maximize = scalars.maximize;
  p.lr = scalars.lr;
  p.beta1 = scalars.beta1;
  p.beta2 = scalars.beta2;
  p.weight_decay = scalars.weight_decay;
  p.eps = scalars.eps;
  p.lr_pointer = lr_pointer;
  p.grad_scale = float_pointer(grad_scale);
  p.found_inf = float_pointer(found_inf);
  C10_CUDA_CHECK(cuda::launch_fused_adam(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

#define ATEN_EXT_FUSED_ADAM_CUDA_RUN(name, decoupled)                                                        \
  void run::name##_cuda(ATEN_EXT_FUSED_ADAM_PARAMETERS(double)) {                                            \
    run_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps,                             \
                   {lr, beta1, beta2, weight_decay, eps, decoupled, amsgrad, maximize}, nullptr, grad_scale, \
                   found_inf);                                                                               \
  }                                                                                                          \
  void run::name##_tensor_lr_cuda(ATEN_EXT_FUSED_ADAM_PARAMETERS(const at::Tensor&)) {                       \
    const bool on_host = lr.is_cpu();                                                                        \
    run_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps,                             \
                   {on_host ? lr.item().toDouble() : 0.0, beta1, beta2, weight_decay, eps, decoupled,        \
                    amsgrad, maximize},                                                                      \
                   on_host ? nullptr : lr.const_data_ptr<float>(), grad_scale, found_inf);                   \
  }

ATEN_EXT_FUSED_ADAM_CUDA_RUN(_fused_adamw_, true)
ATEN_EXT_FUSED_ADAM_CUDA_RUN(_fused_adam_, false)

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
