// _fused_adagrad_ and its .tensor_lr overload on CPU: when, and over what.
//
// Upstream starts one parallel region and a dtype dispatch per tensor. Here the whole list is one parallel
// region, split evenly by elements, whatever the sizes of its tensors.
#include "cpu/fused_adagrad.h"

#include <ATen/core/Tensor.h>

#include "cpu/tensor_list.h"
#include "fused_adagrad_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

using cpu::FusedAdagradParams;

const bool supported = cpu::has_avx2();

const char* decline_on_cpu(at::TensorList params, at::TensorList grads, at::TensorList state_sums,
                           at::TensorList steps, const std::optional<at::Tensor>& grad_scale,
                           const std::optional<at::Tensor>& found_inf) {
  if (!supported) {
    return "CPU without AVX2";
  }
  return decline_fused_adagrad(params, grads, state_sums, steps, grad_scale, found_inf);
}

void run_fused_adagrad(at::TensorList params, at::TensorList grads, at::TensorList state_sums,
                       at::TensorList steps, const FusedAdagradScalars& scalars,
                       const std::optional<at::Tensor>& grad_scale,
                       const std::optional<at::Tensor>& found_inf) {
  if (found_inf.has_value() && *found_inf->const_data_ptr<float>() == 1.0f) {
    return;
  }
  const int64_t element_size = params[0].element_size();
  cpu::TensorListOf<cpu::kAdagradLists> list;
  list.tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = list.add(numel, element_size);
    row.data[cpu::kStateSum] = state_sums[i].mutable_data_ptr();
    row.step = *static_cast<const float*>(steps[i].const_data_ptr());
    return row;
  });

  FusedAdagradParams p{};
  p.tensors = list.tensors.data();
  p.count = static_cast<int64_t>(list.tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.maximize = scalars.maximize;
  p.has_grad_scale = grad_scale.has_value();
  p.grad_scale = p.has_grad_scale ? *grad_scale->const_data_ptr<float>() : 1.0f;
  p.lr = scalars.lr;
  p.lr_decay = scalars.lr_decay;
  p.weight_decay = scalars.weight_decay;
  p.eps = scalars.eps;
#if defined(__x86_64__)
  cpu::for_all_units(list, element_size,
                     [&p](int64_t begin, int64_t end) { cpu::AVX2::fused_adagrad(p, begin, end); });
#endif
}

}  // namespace

const char* decline::_fused_adagrad__cpu(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(double)) {
  return decline_on_cpu(params, grads, state_sums, steps, grad_scale, found_inf);
}

void run::_fused_adagrad__cpu(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(double)) {
  run_fused_adagrad(params, grads, state_sums, steps, {lr, lr_decay, weight_decay, eps, maximize}, grad_scale,
                    found_inf);
}

const char* decline::_fused_adagrad__tensor_lr_cpu(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(const at::Tensor&)) {
  const char* reason = decline_on_cpu(params, grads, state_sums, steps, grad_scale, found_inf);
  return reason != nullptr ? reason : decline_cpu_lr(lr, params[0].device());
}

void run::_fused_adagrad__tensor_lr_cpu(ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(const at::Tensor&)) {
  _fused_adagrad__cpu(params, grads, state_sums, steps, lr.item().toDouble(), lr_decay, weight_decay, eps,
                      maximize, grad_scale, found_inf);
}

}  // namespace aten_ext
