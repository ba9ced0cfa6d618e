// The caller's sequences as the kernels read them, and results as the caller wants them.
#pragma once

#include <ATen/ATen.h>

#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// [steps, batch, features]. The rows of a packed sequence stay as they are, unless all have every step.
inline at::Tensor in_time(const at::Tensor& t, const RnnProblem& problem) {
  if (problem.batch_first) {
    return t.transpose(0, 1);
  }
  const Sequence& sequence = problem.sequence;
  return t.dim() == 2 && !sequence.is_packed() ? t.view({sequence.steps, sequence.batch, t.size(1)}) : t;
}

// The other way: a tensor of so many dimensions.
inline at::Tensor as_given(const at::Tensor& t, const RnnProblem& problem, int64_t dims) {
  if (problem.batch_first) {
    return t.transpose(0, 1);
  }
  return t.dim() == 3 && dims == 2 ? t.view({t.size(0) * t.size(1), t.size(2)}) : t;
}

}  // namespace aten_ext::cuda
