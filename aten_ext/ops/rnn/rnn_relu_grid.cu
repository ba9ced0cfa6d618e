// The kernels of an RNN with relu over the whole GPU.
#include "ops/rnn/grid_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* rnn_relu_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<RnnCell<Relu>>(dtype, plan);
}

}  // namespace aten_ext::cuda
