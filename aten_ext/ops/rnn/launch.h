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

// Of each cell: KernelFamily::Cluster, and the two others. Compiled apart, for they take long.
RecurrenceKernel* gru_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* gru_grid_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* lstm_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* lstm_grid_kernel(Dtype dtype, const Recurrence& plan);
// The same that save what the backward needs.
RecurrenceKernel* saving_gru_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* saving_gru_grid_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* saving_lstm_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* saving_lstm_grid_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* rnn_tanh_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* rnn_tanh_grid_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* rnn_relu_cluster_kernel(Dtype dtype, const Recurrence& plan);
RecurrenceKernel* rnn_relu_grid_kernel(Dtype dtype, const Recurrence& plan);

}  // namespace aten_ext::cuda
