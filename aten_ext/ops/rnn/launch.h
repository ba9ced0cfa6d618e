// Between the files that have the kernels of a recurrence. No ATen here.
#pragma once

#include "core/launch.h"
#include "ops/rnn/recurrence.h"

namespace aten_ext::cuda {

struct RnnArguments;

struct RecurrenceKernel {
  void (*function)(RnnArguments);
  KernelAttributes attributes;
};

// KernelFamily::Cluster.
RecurrenceKernel* cluster_kernel(Dtype dtype, Math math, int shape);

}  // namespace aten_ext::cuda
