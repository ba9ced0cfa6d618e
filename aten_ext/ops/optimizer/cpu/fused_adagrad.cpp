// _fused_adagrad_ and its .tensor_lr overload on CPU: when, and over what.
//
// Upstream starts one parallel region and a dtype dispatch per tensor. Here the whole list is one parallel
// region, split evenly by elements, whatever the sizes of its tensors.
#include "ops/optimizer/cpu/fused_adagrad.h"

#include "ops/optimizer/adagrad.h"
#include "ops/optimizer/cpu/step.h"

namespace aten_ext::cpu {
namespace {

template <class Args>
Choice<StepPlan> choose_adagrad(const Args& a) {
  if (const char* reason = decline_machine()) {
    return reason;
  }
  const Inspected found = inspect_adagrad(a);
  const char* reason = found.reason != nullptr ? found.reason : decline_lr(a.lr, a.self[0].device());
  reason = reason != nullptr ? reason : decline_mode(found, a.self[0].element_size());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan_step(a, found);
}

template <class Args>
Ran<void> run_adagrad(const Args& a, const StepPlan& plan) {
  if (found_infinity(a.found_inf)) {
    return {};
  }
  const int64_t element_size = a.self[0].element_size();
  TensorListOf<kAdagradLists> list;
  list.tensors.reserve(a.self.size());
  add_rows(a.self, a.grads, plan.unscales, [&](size_t i, int64_t numel) -> auto& {
    auto& row = list.add(numel, element_size);
    row.data[kStateSum] = a.state_sums[i].mutable_data_ptr();
    row.step = *a.state_steps[i].template const_data_ptr<float>();
    return row;
  });

  FusedAdagradParams p{};
  p.tensors = list.tensors.data();
  p.count = static_cast<int64_t>(list.tensors.size());
  p.dtype = plan.dtype;
  p.maximize = a.maximize;
  p.has_grad_scale = plan.unscales;
  p.grad_scale = plan.unscales ? *float_pointer(a.grad_scale) : 1.0f;
  p.lr = lr_value(a.lr);
  p.lr_decay = a.lr_decay;
  p.weight_decay = a.weight_decay;
  p.eps = a.eps;
#if defined(__x86_64__)
  for_all_units(list, element_size, plan.threads,
                [&p](int64_t begin, int64_t end) { AVX2::fused_adagrad(p, begin, end); });
#endif
  return {};
}

}  // namespace

Choice<StepPlan> choose(const args::_fused_adagrad_& a) {
  return choose_adagrad(a);
}
Choice<StepPlan> choose(const args::_fused_adagrad__tensor_lr& a) {
  return choose_adagrad(a);
}

Ran<void> run(const args::_fused_adagrad_& a, const StepPlan& plan) {
  return run_adagrad(a, plan);
}
Ran<void> run(const args::_fused_adagrad__tensor_lr& a, const StepPlan& plan) {
  return run_adagrad(a, plan);
}

}  // namespace aten_ext::cpu
