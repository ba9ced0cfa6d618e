// The kernels of an LSTM over the whole GPU.
#include "ops/rnn/grid_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* lstm_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<LstmCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
