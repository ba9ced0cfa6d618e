// _fused_adam_, _fused_adamw_ and their .tensor_lr overloads on CPU: when, and over what.
//
// Upstream starts one parallel region, two std::pow and a dtype dispatch per tensor. Here the whole list
// is one parallel region, split evenly by elements, whatever the sizes of its tensors.
#include "cpu/fused_adam.h"

#include <ATen/core/Tensor.h>

#include "cpu/tensor_list.h"
#include "fused_adam_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

using cpu::FusedAdamParams;

// Upstream's build for a machine without AVX2 is not slower than ours (measured).
const bool supported = cpu::has_avx2();

C10_ALWAYS_INLINE const char* decline_on_cpu(at::TensorList params, at::TensorList grads,
                                             at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                                             at::TensorList max_exp_avg_sqs, at::TensorList steps,
                                             bool amsgrad, const std::optional<at::Tensor>& grad_scale,
                                             const std::optional<at::Tensor>& found_inf) {
  if (!supported) {
    return "CPU without AVX2";
  }
  return decline_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, amsgrad, grad_scale,
                            found_inf);
}

void run_fused_adam(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                    at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList steps,
                    const FusedAdamScalars& scalars, const std::optional<at::Tensor>& grad_scale,
                    const std::optional<at::Tensor>& found_inf) {
  if (found_inf.has_value() && *found_inf->const_data_ptr<float>() == 1.0f) {
    return;
  }
  const int64_t element_size = params[0].element_size();
  cpu::TensorListOf<cpu::kAdamLists> list;
  list.tensors.reserve(params.size());
  add_rows(params, grads, grad_scale.has_value(), [&](size_t i, int64_t numel) -> auto& {
    auto& row = list.add(numel, element_size);
    row.data[cpu::kExpAvg] = exp_avgs[i].mutable_data_ptr();
    row.data[cpu::kExpAvgSq] = exp_avg_sqs[i].mutable_data_ptr();
    row.data[cpu::kMaxExpAvgSq] = scalars.amsgrad ? max_exp_avg_sqs[i].mutable_data_ptr() : nullptr;
    row.step = *static_cast<const float*>(steps[i].const_data_ptr());
    return row;
  });

  FusedAdamParams p{};
  p.tensors = list.tensors.data();
  p.count = static_cast<int64_t>(list.tensors.size());
  p.dtype = to_floating_dtype(params[0].scalar_type());
  p.decoupled = scalars.decoupled;
  p.amsgrad = scalars.amsgrad;
  p.maximize = scalars.maximize;
  p.has_grad_scale = grad_scale.has_value();
  p.grad_scale = p.has_grad_scale ? *grad_scale->const_data_ptr<float>() : 1.0f;
  p.lr = scalars.lr;
  p.beta1 = scalars.beta1;
  p.beta2 = scalars.beta2;
  p.weight_decay = scalars.weight_decay;
  p.eps = scalars.eps;
#if defined(__x86_64__)
  cpu::for_all_units(list, element_size,
                     [&p](int64_t begin, int64_t end) { cpu::AVX2::fused_adam(p, begin, end); });
#endif
}

}  // namespace

// The four overloads differ in the kind of decay and in the type of lr alone.

#define ATEN_EXT_FUSED_ADAM_CPU(name, decoupled)                                                             \
  const char* decline::name##_cpu(ATEN_EXT_FUSED_ADAM_PARAMETERS(double)) {                                  \
    return decline_on_cpu(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, amsgrad, grad_scale, \
                          found_inf);                                                                        \
  }                                                                                                          \
  void run::name##_cpu(ATEN_EXT_FUSED_ADAM_PARAMETERS(double)) {                                             \
    run_fused_adam(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps,                             \
                   {lr, beta1, beta2, weight_decay, eps, decoupled, amsgrad, maximize}, grad_scale,          \
                   found_inf);                                                                               \
  }                                                                                                          \
  const char* decline::name##_tensor_lr_cpu(ATEN_EXT_FUSED_ADAM_PARAMETERS(const at::Tensor&)) {             \
    const char* reason = decline_on_cpu(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps,        \
                                        amsgrad, grad_scale, found_inf);                                     \
    return reason != nullptr ? reason : decline_cpu_lr(lr, params[0].device());                              \
  }                                                                                                          \
  void run::name##_tensor_lr_cpu(ATEN_EXT_FUSED_ADAM_PARAMETERS(const at::Tensor&)) {                        \
    name##_cpu(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr.item().toDouble(), beta1,    \
               beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);                          \
  }

ATEN_EXT_FUSED_ADAM_CPU(_fused_adamw_, true)
ATEN_EXT_FUSED_ADAM_CPU(_fused_adam_, false)

}  // namespace aten_ext
