// _foreach_add_.Scalar on CUDA, for an optimizer's step counters: when, and over what.
//
// choose() is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include "ops/optimizer/foreach_add.h"

#include "core/gpu.h"
#include "ops/optimizer/overrides.h"

namespace aten_ext::cuda {

Choice<ForeachAddPlan> choose(const args::_foreach_add__Scalar& a) {
  if (const char* reason = decline_foreach_add(a.self, a.scalar)) {
    return reason;
  }
  const Gpu& gpu = gpu_of(a.self[0].device());
  const ForeachAddPlan plan{to_float(a.scalar), gpu.argument_bytes};
  const char* const reason = lacks(gpu, plan.needs());
  return reason != nullptr ? Choice<ForeachAddPlan>(reason) : plan;
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <vector>

#include "ops/optimizer/cuda/foreach_add.h"
#include "ops/optimizer/cuda/step.h"

namespace aten_ext::cuda {

Ran<void> run(const args::_foreach_add__Scalar& a, const ForeachAddPlan& plan) {
  const c10::cuda::CUDAGuard guard(a.self[0].device());
  std::vector<float*> numbers;
  numbers.reserve(a.self.size());
  for (const at::Tensor& t : a.self) {
    numbers.push_back(t.mutable_data_ptr<float>());
  }
  const ForeachAddParams p{numbers.data(), static_cast<int64_t>(numbers.size()), plan.value,
                           plan.argument_bytes};
  Ran<void> ran = finish(launch_foreach_add(p, c10::cuda::getCurrentCUDAStream()));
  if (!ran.refused()) {
    for (const at::Tensor& t : a.self) {
      t.unsafeGetTensorImpl()->bump_version();  // as upstream's kernel does: see cpu/foreach_add.cpp
    }
  }
  return ran;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
