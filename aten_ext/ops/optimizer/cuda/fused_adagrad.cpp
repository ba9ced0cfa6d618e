// _fused_adagrad_ and its .tensor_lr overload on CUDA: when, and over what.
//
// choose() is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include "ops/optimizer/adagrad.h"
#include "ops/optimizer/cuda/step.h"

namespace aten_ext::cuda {
namespace {

// Upstream's kernel (2.11) writes unscaled gradients back for tensors whose memory or number of elements is
// not a multiple of four elements, and leaves those of all others as they are.
const char* decline_grad_scale(const std::optional<at::Tensor>& grad_scale) {
  return grad_scale.has_value() && grad_scale->defined()
             ? "grad_scale, which upstream writes back to some gradients only"
             : nullptr;
}

template <class Args>
Choice<StepPlan> choose_adagrad(const Args& a) {
  const char* reason = inspect_adagrad(a).reason;
  reason = reason != nullptr ? reason : decline_grad_scale(a.grad_scale);
  reason = reason != nullptr ? reason : decline_lr(a.lr, a.self[0].device());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan_step(a);
}

}  // namespace

Choice<StepPlan> choose(const args::_fused_adagrad_& a) {
  return choose_adagrad(a);
}
Choice<StepPlan> choose(const args::_fused_adagrad__tensor_lr& a) {
  return choose_adagrad(a);
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <vector>

#include "ops/optimizer/cuda/fused_adagrad.h"

namespace aten_ext::cuda {
namespace {

template <class Args>
Ran<void> run_adagrad(const Args& a, const StepPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.self[0].device());
  std::vector<FlatTensors<kAdagradLists>> tensors;
  tensors.reserve(a.self.size());
  add_rows(a.self, a.grads, plan.unscales, [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[kStateSum] = a.state_sums[i].mutable_data_ptr();
    row.step = a.state_steps[i].template const_data_ptr<float>();
    return row;
  });

  const StepLr lr = step_lr(a.lr, plan);
  FusedAdagradParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.launch = {plan.overlaps, plan.argument_bytes, plan.multiprocessors};
  p.dtype = plan.dtype;
  p.maximize = a.maximize;
  p.lr = lr.value;
  p.lr_decay = a.lr_decay;
  p.weight_decay = a.weight_decay;
  p.eps = a.eps;
  p.lr_pointer = lr.pointer;
  p.grad_scale = float_pointer(a.grad_scale);
  p.found_inf = float_pointer(a.found_inf);
  return finish(launch_fused_adagrad(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

Ran<void> run(const args::_fused_adagrad_& a, const StepPlan& plan) {
  return run_adagrad(a, plan);
}
Ran<void> run(const args::_fused_adagrad__tensor_lr& a, const StepPlan& plan) {
  return run_adagrad(a, plan);
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
