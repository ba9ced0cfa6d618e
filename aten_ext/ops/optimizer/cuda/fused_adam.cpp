// _fused_adam_, _fused_adamw_ and their .tensor_lr overloads on CUDA: when, and over what.
//
// choose() is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include "ops/optimizer/adam.h"
#include "ops/optimizer/cuda/step.h"

namespace aten_ext::cuda {
namespace {

template <class Args>
Choice<StepPlan> choose_adam(const Args& a) {
  const char* reason = inspect_adam(a).reason;
  reason = reason != nullptr ? reason : decline_lr(a.lr, a.self[0].device());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan_step(a);
}

}  // namespace

Choice<StepPlan> choose(const args::_fused_adamw_& a) {
  return choose_adam(a);
}
Choice<StepPlan> choose(const args::_fused_adamw__tensor_lr& a) {
  return choose_adam(a);
}
Choice<StepPlan> choose(const args::_fused_adam_& a) {
  return choose_adam(a);
}
Choice<StepPlan> choose(const args::_fused_adam__tensor_lr& a) {
  return choose_adam(a);
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <vector>

#include "ops/optimizer/cuda/fused_adam.h"

namespace aten_ext::cuda {
namespace {

template <class Args>
Ran<void> run_adam(const Args& a, const StepPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.self[0].device());
  std::vector<FlatTensors<kAdamLists>> tensors;
  tensors.reserve(a.self.size());
  add_rows(a.self, a.grads, plan.unscales, [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[kExpAvg] = a.exp_avgs[i].mutable_data_ptr();
    row.data[kExpAvgSq] = a.exp_avg_sqs[i].mutable_data_ptr();
    row.data[kMaxExpAvgSq] = a.amsgrad ? a.max_exp_avg_sqs[i].mutable_data_ptr() : nullptr;
    row.step = a.state_steps[i].template const_data_ptr<float>();
    return row;
  });

  const StepLr lr = step_lr(a.lr, plan);
  FusedAdamParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.launch = {plan.overlaps, plan.argument_bytes, plan.multiprocessors};
  p.dtype = plan.dtype;
  p.decoupled = kDecoupled<Args>;
  p.amsgrad = a.amsgrad;
  p.maximize = a.maximize;
  p.lr = lr.value;
  p.beta1 = a.beta1;
  p.beta2 = a.beta2;
  p.weight_decay = a.weight_decay;
  p.eps = a.eps;
  p.lr_pointer = lr.pointer;
  p.grad_scale = float_pointer(a.grad_scale);
  p.found_inf = float_pointer(a.found_inf);
  return finish(launch_fused_adam(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

Ran<void> run(const args::_fused_adamw_& a, const StepPlan& plan) {
  return run_adam(a, plan);
}
Ran<void> run(const args::_fused_adamw__tensor_lr& a, const StepPlan& plan) {
  return run_adam(a, plan);
}
Ran<void> run(const args::_fused_adam_& a, const StepPlan& plan) {
  return run_adam(a, plan);
}
Ran<void> run(const args::_fused_adam__tensor_lr& a, const StepPlan& plan) {
  return run_adam(a, plan);
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
