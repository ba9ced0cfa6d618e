// The kernels of one step of an LSTM.
#include "ops/rnn/cell_step.cuh"

namespace aten_ext::cuda {

cudaError_t launch_lstm_cell(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  return launch_cell_of<LstmCell>(p, kernel, stream);
}

}  // namespace aten_ext::cuda
