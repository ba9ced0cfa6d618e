// The kernels of an LSTM over the whole GPU, that save what the backward
// needs.
#include "ops/rnn/grid_kernels.cuh"
#include "ops/rnn/saving.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* saving_lstm_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<SavingLstmCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
