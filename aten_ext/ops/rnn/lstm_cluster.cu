// The kernels of an LSTM where a block, or a thread-block cluster, has the whole state.
#include "ops/rnn/cluster_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* lstm_cluster_kernel(Dtype dtype, const Recurrence& plan) {
  return cluster_kernel_of<LstmCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
