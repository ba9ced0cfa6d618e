// _fused_sgd_ and its .tensor_lr overload on CPU: when, and over what.
//
// Upstream starts one parallel region and a dtype dispatch per tensor. Here the whole list is one parallel
// region, split evenly by elements, whatever the sizes of its tensors.
#include "ops/optimizer/cpu/fused_sgd.h"

#include "ops/optimizer/cpu/step.h"
#include "ops/optimizer/cpu/upstream_numerics.h"
#include "ops/optimizer/sgd.h"

namespace aten_ext::cpu {
namespace {

// Whoever relies on upstream's answer shall get that one, and whoever looks into counts() finds out why.
const char* decline_16_bits(at::ScalarType dtype) {
  return kSgdIn16BitsIsBroken && (dtype == at::kHalf || dtype == at::kBFloat16)
             ? "16-bit parameters, of which upstream leaves most as they are"
             : nullptr;
}

template <class Args>
Choice<StepPlan> choose_sgd(const Args& a) {
  if (const char* reason = decline_machine()) {
    return reason;
  }
  const Inspected found = inspect_sgd(a);
  const char* reason = found.reason != nullptr ? found.reason : decline_16_bits(a.self[0].scalar_type());
  reason = reason != nullptr ? reason : decline_lr(a.lr, a.self[0].device());
  reason = reason != nullptr ? reason : decline_mode(found, a.self[0].element_size());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan_step(a, found);
}

template <class Args>
Ran<void> run_sgd(const Args& a, const StepPlan& plan) {
  if (found_infinity(a.found_inf)) {
    return {};
  }
  const int64_t element_size = a.self[0].element_size();
  TensorListOf<kSgdLists> list;
  list.tensors.reserve(a.self.size());
  add_rows(a.self, a.grads, plan.unscales, [&](size_t i, int64_t numel) -> auto& {
    auto& row = list.add(numel, element_size);
    row.data[kMomentumBuffer] = a.momentum != 0 ? a.momentum_buffer_list[i].mutable_data_ptr() : nullptr;
    return row;
  });

  FusedSgdParams p{};
  p.tensors = list.tensors.data();
  p.count = static_cast<int64_t>(list.tensors.size());
  p.dtype = plan.dtype;
  p.nesterov = a.nesterov;
  p.maximize = a.maximize;
  p.is_first_step = a.is_first_step;
  p.has_grad_scale = plan.unscales;
  p.grad_scale = plan.unscales ? *float_pointer(a.grad_scale) : 1.0f;
  p.weight_decay = a.weight_decay;
  p.momentum = a.momentum;
  p.lr = lr_value(a.lr);
  p.dampening = a.dampening;
#if defined(__x86_64__)
  for_all_units(list, element_size, plan.threads,
                [&p](int64_t begin, int64_t end) { AVX2::fused_sgd(p, begin, end); });
#endif
  return {};
}

}  // namespace

Choice<StepPlan> choose(const args::_fused_sgd_& a) {
  return choose_sgd(a);
}
Choice<StepPlan> choose(const args::_fused_sgd__tensor_lr& a) {
  return choose_sgd(a);
}

Ran<void> run(const args::_fused_sgd_& a, const StepPlan& plan) {
  return run_sgd(a, plan);
}
Ran<void> run(const args::_fused_sgd__tensor_lr& a, const StepPlan& plan) {
  return run_sgd(a, plan);
}

}  // namespace aten_ext::cpu
