// The kernels of a GRU over the whole GPU.
#include "ops/rnn/grid_kernels.cuh"

namespace aten_ext::cuda {

RecurrenceKernel* gru_grid_kernel(Dtype dtype, const Recurrence& plan) {
  return grid_kernel_of<GruCell>(dtype, plan);
}

}  // namespace aten_ext::cuda
