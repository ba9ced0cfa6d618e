// The rule of _fused_sgd_ and its .tensor_lr overload, for both devices.
#pragma once

#include "args.h"
#include "ops/optimizer/lists.h"

namespace aten_ext {

// There are momentum buffers where there is momentum, and nowhere else.
template <class Args>
C10_ALWAYS_INLINE Inspected inspect_sgd(const Args& a) {
  if (a.momentum != 0) {
    return inspect_lists(a.self, a.grads, nullptr, a.grad_scale, a.found_inf, a.momentum_buffer_list);
  }
  if (!a.self.empty() && !a.momentum_buffer_list.empty()) {
    return {"lists of different lengths"};
  }
  return inspect_lists(a.self, a.grads, nullptr, a.grad_scale, a.found_inf);
}

}  // namespace aten_ext
