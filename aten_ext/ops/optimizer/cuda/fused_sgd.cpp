// _fused_sgd_ and its .tensor_lr overload on CUDA: when, and over what.
//
// choose() is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include "ops/optimizer/cuda/step.h"
#include "ops/optimizer/sgd.h"

namespace aten_ext::cuda {
namespace {

const char* decline_momentum(double momentum, bool is_first_step) {
  if (momentum == 0 && is_first_step) {
    return "is_first_step without momentum, of which upstream warns";
  }
  if (momentum != 0 && !(momentum > 0)) {
    return "momentum below 0";
  }
  return nullptr;
}

template <class Args>
Choice<StepPlan> choose_sgd(const Args& a) {
  const char* reason = decline_momentum(a.momentum, a.is_first_step);
  reason = reason != nullptr ? reason : inspect_sgd(a).reason;
  reason = reason != nullptr ? reason : decline_lr(a.lr, a.self[0].device());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan_step(a);
}

}  // namespace

Choice<StepPlan> choose(const args::_fused_sgd_& a) {
  return choose_sgd(a);
}
Choice<StepPlan> choose(const args::_fused_sgd__tensor_lr& a) {
  return choose_sgd(a);
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <vector>

#include "ops/optimizer/cuda/fused_sgd.h"

namespace aten_ext::cuda {
namespace {

template <class Args>
Ran<void> run_sgd(const Args& a, const StepPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.self[0].device());
  std::vector<FlatTensors<kSgdLists>> tensors;
  tensors.reserve(a.self.size());
  add_rows(a.self, a.grads, plan.unscales, [&](size_t i, int64_t numel) -> auto& {
    auto& row = tensors.emplace_back();
    row.numel = numel;
    row.data[kMomentumBuffer] = a.momentum != 0 ? a.momentum_buffer_list[i].mutable_data_ptr() : nullptr;
    row.step = nullptr;
    return row;
  });

  const StepLr lr = step_lr(a.lr, plan);
  FusedSgdParams p{};
  p.tensors = tensors.data();
  p.count = static_cast<int64_t>(tensors.size());
  p.launch = {plan.overlaps, plan.argument_bytes, plan.multiprocessors};
  p.dtype = plan.dtype;
  p.nesterov = a.nesterov;
  p.maximize = a.maximize;
  p.is_first_step = a.is_first_step;
  p.weight_decay = a.weight_decay;
  p.momentum = a.momentum;
  p.lr = lr.value;
  p.dampening = a.dampening;
  p.lr_pointer = lr.pointer;
  p.grad_scale = float_pointer(a.grad_scale);
  p.found_inf = float_pointer(a.found_inf);
  return finish(launch_fused_sgd(p, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

Ran<void> run(const args::_fused_sgd_& a, const StepPlan& plan) {
  return run_sgd(a, plan);
}
Ran<void> run(const args::_fused_sgd__tensor_lr& a, const StepPlan& plan) {
  return run_sgd(a, plan);
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
