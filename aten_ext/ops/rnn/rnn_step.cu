// The kernels of one step of an RNN with tanh or relu.
#include "ops/rnn/cell_step.cuh"

namespace aten_ext::cuda {

cudaError_t launch_rnn_tanh_cell(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  return launch_cell_of<RnnCell<Tanh>>(p, kernel, stream);
}

cudaError_t launch_rnn_relu_cell(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  return launch_cell_of<RnnCell<Relu>>(p, kernel, stream);
}

}  // namespace aten_ext::cuda
