// Between the files that have the kernels of a backward recurrence. No ATen here.
#pragma once

#include "core/launch.h"
#include "ops/rnn/backward/recurrence_backward.h"

namespace aten_ext::cuda {

struct BackwardArguments;

struct BackwardKernel {
  void (*function)(BackwardArguments);
  KernelAttributes attributes;
};

// Exchange::Block and Exchange::Cluster. `saved`: as in RecurrenceBackwardParams.
BackwardKernel* cluster_backward_kernel(Cell cell, Dtype dtype, bool saved, Math math, int shape);

}  // namespace aten_ext::cuda
