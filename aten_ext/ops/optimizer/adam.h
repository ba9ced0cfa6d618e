// The rule of _fused_adam_, _fused_adamw_ and their .tensor_lr overloads, for both devices.
#pragma once

#include <c10/macros/Macros.h>

#include <type_traits>

#include "args.h"
#include "ops/optimizer/lists.h"

namespace aten_ext {

// AdamW's decay of the parameter itself, not Adam's addition to the gradient.
template <class Args>
inline constexpr bool kDecoupled =
    std::is_same_v<Args, args::_fused_adamw_> || std::is_same_v<Args, args::_fused_adamw__tensor_lr>;

template <class Args>
C10_ALWAYS_INLINE Inspected inspect_adam(const Args& a) {
  if (a.amsgrad) {
    return inspect_lists(a.self, a.grads, &a.state_steps, a.grad_scale, a.found_inf, a.exp_avgs,
                         a.exp_avg_sqs, a.max_exp_avg_sqs);
  }
  if (!a.self.empty() && !a.max_exp_avg_sqs.empty()) {
    return {"lists of different lengths"};
  }
  return inspect_lists(a.self, a.grads, &a.state_steps, a.grad_scale, a.found_inf, a.exp_avgs, a.exp_avg_sqs);
}

}  // namespace aten_ext
