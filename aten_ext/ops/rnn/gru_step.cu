// The kernels of one step of a GRU, and which cell's a step takes.
#include "ops/rnn/cell_step.cuh"

namespace aten_ext::cuda {

cudaError_t launch_gru_cell(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  return launch_cell_of<GruCell>(p, kernel, stream);
}

cudaError_t launch_cell(const CellParams& p, CellKernel kernel, cudaStream_t stream) {
  switch (p.cell) {
    case Cell::Gru:
      return launch_gru_cell(p, kernel, stream);
    case Cell::Lstm:
      return launch_lstm_cell(p, kernel, stream);
    case Cell::RnnTanh:
      return launch_rnn_tanh_cell(p, kernel, stream);
    case Cell::RnnRelu:
      return launch_rnn_relu_cell(p, kernel, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace aten_ext::cuda
