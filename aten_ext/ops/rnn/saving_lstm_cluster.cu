// The kernels of an LSTM where a block, or a thread-block cluster, has the whole state, that save what the
// backward needs.
#include "ops/rnn/cluster_kernels.cuh"
#include "ops/rnn/saving.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* saving_lstm_cluster_kernel(Dtype dtype, const Recurrence& plan) {
  return cluster_kernel_of<SavingLstmCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
