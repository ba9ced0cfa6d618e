// _foreach_add_.Scalar on CPU, for an optimizer's step counters: when, and the addition itself.
//
// Upstream calls add_ for one tensor after the other: for each a pass through the dispatcher, a tensor made
// of the scalar and a TensorIterator, for one addition.
#include "ops/optimizer/foreach_add.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "ops/optimizer/overrides.h"

namespace aten_ext::cpu {

Choice<ForeachAddPlan> choose(const args::_foreach_add__Scalar& a) {
  if (const char* reason = decline_foreach_add(a.self, a.scalar)) {
    return reason;
  }
  // Autograd learns from the version that a tensor which it saved was changed. No kernel above this one
  // counts it for a list: upstream's add_ does for each tensor, unless its caller has already.
  return ForeachAddPlan{to_float(a.scalar),
                        !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView)};
}

Ran<void> run(const args::_foreach_add__Scalar& a, const ForeachAddPlan& plan) {
  for (const at::Tensor& t : a.self) {
    *t.mutable_data_ptr<float>() += plan.value;
    if (plan.counts_versions) {
      t.unsafeGetTensorImpl()->bump_version();
    }
  }
  return {};
}

}  // namespace aten_ext::cpu
