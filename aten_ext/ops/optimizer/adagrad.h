// The rule of _fused_adagrad_ and its .tensor_lr overload, for both devices.
#pragma once

#include "args.h"
#include "ops/optimizer/lists.h"

namespace aten_ext {

template <class Args>
C10_ALWAYS_INLINE Inspected inspect_adagrad(const Args& a) {
  return inspect_lists(a.self, a.grads, &a.state_steps, a.grad_scale, a.found_inf, a.state_sums);
}

}  // namespace aten_ext
