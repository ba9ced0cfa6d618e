// What the backwards of a step's gates allocate for the sums of biases' gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "ops/rnn/gates_backward.h"
#include "ops/rnn/overrides.h"

namespace aten_ext::cuda {

// [gates * hidden], undefined where none are wanted.
inline at::Tensor empty_bias(const GatesBackwardPlan& plan, int64_t gates, const at::Tensor& like) {
  return plan.biases ? at::empty({gates * plan.hidden}, like.options()) : at::Tensor();
}

// Undefined where one block sums all rows.
inline at::Tensor empty_parts(const GatesBackwardPlan& plan, const at::Tensor& like) {
  if (!plan.biases || plan.tile.parts == 1) {
    return {};
  }
  return at::empty({plan.tile.parts, kSums, plan.hidden},
                   like.options().dtype(plan.dtype == Dtype::Double ? at::kDouble : at::kFloat));
}

inline void* to_write(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr() : nullptr;
}

}  // namespace aten_ext::cuda
