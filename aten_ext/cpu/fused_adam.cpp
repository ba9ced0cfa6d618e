// _fused_adam_, _fused_adamw_ and their .tensor_lr overloads on CPU: when, and over what.
//
// Upstream starts one parallel region, two std::pow and a dtype dispatch per tensor. Here the whole list
// is one parallel region, split evenly by elements, whatever the sizes of its tensors.
#include "cpu/fused_adam.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checks.h"
#include "fused_adam_args.h"
#include "overrides.h"

namespace aten_ext {
namespace {

using cpu::AdamDtype;
using cpu::FusedAdamParams;
using cpu::FusedAdamTensor;

// Fewer elements than this, which take 3 us at 0.4 ns each, are not worth waking another thread for.
constexpr int64_t kElementsPerThread = 8192;

AdamDtype to_adam_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return AdamDtype::Double;
    case at::kBFloat16:
      return AdamDtype::BFloat16;
    case at::kHalf:
      return AdamDtype::Half;
    default:
      return AdamDtype::Float;  // decline() lets nothing else through
  }
}

using Kernel = void (*)(const FusedAdamParams&, int64_t begin, int64_t end);

Kernel choose_kernel() {
#if defined(__x86_64__)
  // ATen's own view of the machine, which also honours ATEN_CPU_CAPABILITY.
  const std::string capability = at::get_cpu_capability();
  if (capability == "AVX2" || capability == "AVX512") {
    return cpu::AVX2::fused_adam;
  }
#endif
  return nullptr;
}

// nullptr on a machine without AVX2: upstream's build for it is not slower than ours (measured).
const Kernel kernel = choose_kernel();

// Whether one parameter stands in the list twice. Its two steps must then follow each other, as
// upstream's do. An open-addressing table of addresses.
bool has_duplicate(const std::vector<FusedAdamTensor>& tensors) {
  size_t size = 16;
  while (size < 2 * tensors.size()) {
    size *= 2;
  }
  std::vector<const void*> table(size, nullptr);
  for (const FusedAdamTensor& tensor : tensors) {
    // Allocations are 64-byte aligned: the low bits say little. The factor is 2^64 / golden ratio.
    size_t slot = (reinterpret_cast<uintptr_t>(tensor.param) * 0x9E3779B97F4A7C15ull) >> 32 & (size - 1);
    while (table[slot] != nullptr) {
      if (table[slot] == tensor.param) {
        return true;
      }
      slot = (slot + 1) & (size - 1);
    }
    table[slot] = tensor.param;
  }
  return false;
}

C10_ALWAYS_INLINE const char* decline_on_cpu(at::TensorList params, at::TensorList grads,
                                             at::TensorList exp_avgs, at::TensorList exp_avg_sqs,
                                             at::TensorList max_exp_avg_sqs, at::TensorList steps,
                                             bool amsgrad, const std::optional<at::Tensor>& grad_scale,
                                             const std::optional<at::Tensor>& found_inf) {
  if (kernel == nullptr) {
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
  const int64_t elements_per_unit = FusedAdamParams::kUnitBytes / params[0].element_size();
  std::vector<FusedAdamTensor> tensors;
  tensors.reserve(params.size());
  int64_t units = 0;
  int64_t elements = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    const int64_t numel = params[i].numel();
    if (numel == 0) {
      continue;
    }
    FusedAdamTensor& tensor = tensors.emplace_back();
    tensor.param = params[i].mutable_data_ptr();
    // Read only, unless it is unscaled: a copy-on-write gradient is then not copied.
    tensor.grad =
        grad_scale.has_value() ? grads[i].mutable_data_ptr() : const_cast<void*>(grads[i].const_data_ptr());
    tensor.exp_avg = exp_avgs[i].mutable_data_ptr();
    tensor.exp_avg_sq = exp_avg_sqs[i].mutable_data_ptr();
    tensor.max_exp_avg_sq = scalars.amsgrad ? max_exp_avg_sqs[i].mutable_data_ptr() : nullptr;
    tensor.numel = numel;
    tensor.first_unit = units;
    tensor.step = *static_cast<const float*>(steps[i].const_data_ptr());
    units += (numel + elements_per_unit - 1) / elements_per_unit;
    elements += numel;
  }
  if (tensors.empty()) {  // all of them without elements: the kernel looks for the tensor of a unit
    return;
  }

  FusedAdamParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.dtype = to_adam_dtype(params[0].scalar_type());
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

  const bool one_thread =
      elements < 2 * kElementsPerThread || at::get_num_threads() == 1 || has_duplicate(tensors);
  if (one_thread) {
    kernel(p, 0, units);
    return;
  }
  const int64_t grain = kElementsPerThread / elements_per_unit;
  at::parallel_for(0, units, grain, [&p](int64_t begin, int64_t end) { kernel(p, begin, end); });
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
    return reason != nullptr                   ? reason                                                      \
           : is_number(lr, params[0].device()) ? nullptr                                                     \
                                               : "lr that is not one number on the parameters' device";      \
  }                                                                                                          \
  void run::name##_tensor_lr_cpu(ATEN_EXT_FUSED_ADAM_PARAMETERS(const at::Tensor&)) {                        \
    name##_cpu(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, lr.item().toDouble(), beta1,    \
               beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf);                          \
  }

ATEN_EXT_FUSED_ADAM_CPU(_fused_adamw_, true)
ATEN_EXT_FUSED_ADAM_CPU(_fused_adam_, false)

}  // namespace aten_ext
