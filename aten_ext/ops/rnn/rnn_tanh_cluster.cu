// The kernels of an RNN with tanh where a block, or a thread-block cluster, has the whole state.
#include "ops/rnn/cluster_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* rnn_tanh_cluster_kernel(Dtype dtype, const Recurrence& plan) {
  return cluster_kernel_of<RnnCell<Tanh>>(dtype, plan);
}

}  // namespace aten_ext::cuda
