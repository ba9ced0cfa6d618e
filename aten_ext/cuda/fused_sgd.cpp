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

#ifdef ATEN_EXT_WITH_CUDA

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cuda/fused_sgd.h"

namespace aten_ext {
namespace {

void run_fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
                   const FusedSgdScalars& scalars, const float* lr_pointer,
                   const std::optional<at::Tensor>& grad_scale, const std::optional<at::Tensor>& found_inf) {
  const c10::cuda::CUDAGuard guard(params[0].device());
  std::vector<cuda::FlatTensors<cuda::kSgdLists>> tensors;
  tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[cuda::kMomentumBuffer] =
        scalars.momentum != 0 ? momentum_buffers[i].mutable_data_ptr() : nullptr;
    row.step = nullptr;
    return row;
  });

  cuda::FusedSgdParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.nesterov = scalars.nesterov;
  p.maximize = scalars.maximize;
  p.is_first_step = scalars.is_first_step;
  p.weight_decay = scalars.weight_decay;
  p.momentum = scalars.momentum;
  p.lr = scalars.lr;
  p.dampening = scalars.dampening;
  p.lr_pointer = lr_pointer;
  p.grad_scale = float_pointer(grad_scale);
  p.found_inf = float_pointer(found_inf);
  C10_CUDA_CHECK(cuda::launch_fused_sgd(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

void run::_fused_sgd__cuda(ATEN_EXT_FUSED_SGD_PARAMETERS(double)) {
  run_fused_sgd(params, grads, momentum_buffers,
                {weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step}, nullptr,
                grad_scale, found_inf);
}

void run::_fused_sgd__tensor_lr_cuda(ATEN_EXT_FUSED_SGD_PARAMETERS(const at::Tensor&)) {
  const bool on_host = lr.is_cpu();
  run_fused_sgd(params, grads, momentum_buffers,
                {weight_decay, momentum, on_host ? lr.item().toDouble() : 0.0, dampening, nesterov, maximize,
                 is_first_step},
                on_host ? nullptr : lr.const_data_ptr<float>(), grad_scale, found_inf);
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
