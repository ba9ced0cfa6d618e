// The kernels of an RNN with tanh over the whole GPU.
#include "ops/rnn/grid_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* rnn_tanh_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<RnnCell<Tanh>>(dtype, plan);
}

}  // namespace aten_ext::cuda
