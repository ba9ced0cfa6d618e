// _fused_sgd_ and its .tensor_lr overload on CPU: when, and over what.
//
// Upstream starts one parallel region and a dtype dispatch per tensor. Here the whole list is one parallel
// region, split evenly by elements, whatever the sizes of its tensors.
#include "cpu/fused_sgd.h"

#include <ATen/core/Tensor.h>

#include "cpu/tensor_list.h"
#include "cpu/upstream_numerics.h"
#include "fused_sgd_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

using cpu::FusedSgdParams;

const bool supported = cpu::has_avx2();

const char* decline_on_cpu(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
                           double momentum, const std::optional<at::Tensor>& grad_scale,
                           const std::optional<at::Tensor>& found_inf) {
  if (!supported) {
    return "CPU without AVX2";
  }
  if (const char* reason =
          decline_fused_sgd(params, grads, momentum_buffers, momentum, grad_scale, found_inf)) {
    return reason;
  }
  // Whoever relies on upstream's answer shall get that one, and whoever looks into counts() finds out why.
  const at::ScalarType dtype = params[0].scalar_type();
  return cpu::kSgdIn16BitsIsBroken && (dtype == at::kHalf || dtype == at::kBFloat16)
             ? "16-bit parameters, of which upstream leaves most as they are"
             : nullptr;
}

void run_fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList momentum_buffers,
                   const FusedSgdScalars& scalars, const std::optional<at::Tensor>& grad_scale,
                   const std::optional<at::Tensor>& found_inf) {
  if (found_inf.has_value() && *found_inf->const_data_ptr<float>() == 1.0f) {
    return;
  }
  const int64_t element_size = params[0].element_size();
  cpu::TensorListOf<cpu::kSgdLists> list;
  list.tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = list.add(numel, element_size);
    row.data[cpu::kMomentumBuffer] = scalars.momentum != 0 ? momentum_buffers[i].mutable_data_ptr() : nullptr;
    return row;
  });

  FusedSgdParams p{};
  p.tensors = list.tensors.data();
  p.count = static_cast<int64_t>(list.tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.nesterov = scalars.nesterov;
  p.maximize = scalars.maximize;
  p.is_first_step = scalars.is_first_step;
  p.has_grad_scale = grad_scale.has_value();
  p.grad_scale = p.has_grad_scale ? *grad_scale->const_data_ptr<float>() : 1.0f;
  p.weight_decay = scalars.weight_decay;
  p.momentum = scalars.momentum;
  p.lr = scalars.lr;
  p.dampening = scalars.dampening;
#if defined(__x86_64__)
  cpu::for_all_units(list, element_size,
                     [&p](int64_t begin, int64_t end) { cpu::AVX2::fused_sgd(p, begin, end); });
#endif
}

}  // namespace

const char* decline::_fused_sgd__cpu(ATEN_EXT_FUSED_SGD_PARAMETERS(double)) {
  return decline_on_cpu(params, grads, momentum_buffers, momentum, grad_scale, found_inf);
}

void run::_fused_sgd__cpu(ATEN_EXT_FUSED_SGD_PARAMETERS(double)) {
  run_fused_sgd(params, grads, momentum_buffers,
                {weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step}, grad_scale,
                found_inf);
}

const char* decline::_fused_sgd__tensor_lr_cpu(ATEN_EXT_FUSED_SGD_PARAMETERS(const at::Tensor&)) {
  const char* reason = decline_on_cpu(params, grads, momentum_buffers, momentum, grad_scale, found_inf);
  return reason != nullptr ? reason : decline_cpu_lr(lr, params[0].device());
}

void run::_fused_sgd__tensor_lr_cpu(ATEN_EXT_FUSED_SGD_PARAMETERS(const at::Tensor&)) {
  _fused_sgd__cpu(params, grads, momentum_buffers, weight_decay, momentum, lr.item().toDouble(), dampening,
                  nesterov, maximize, is_first_step, grad_scale, found_inf);
}

}  // namespace aten_ext
