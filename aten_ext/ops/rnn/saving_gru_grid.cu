// The kernels of a GRU over the whole GPU, that save what the backward
// needs.
#include "ops/rnn/grid_kernels.cuh"
#include "ops/rnn/saving.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* saving_gru_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<SavingGruCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
