// The kernels of a backward recurrence where a block, or a thread-block cluster, has all units.
#include "ops/rnn/backward/cluster_fma.cuh"
#include "ops/rnn/backward/cluster_mma.cuh"
#include "ops/rnn/backward/launch.h"

namespace aten_ext::cuda {
namespace {

template <typename Cell, typename... S>
BackwardKernel* fma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static BackwardKernel kernels[] = {{backward_cluster_fma_kernel<Cell, S>, {}}...};
  return kernels + shape;
}

template <typename Cell, typename Element, typename... S>
BackwardKernel* mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static BackwardKernel kernels[] = {{backward_cluster_mma_kernel<Cell, Element, S>, {}}...};
  return kernels + shape;
}

template <typename Cell>
BackwardKernel* kernel_of_cell(Dtype dtype, Math math, int shape) {
  switch (dtype) {
    case Dtype::Float:
      return math == Math::MmaTf32 ? mma_kernel<Cell, Tf32>(BackwardTf32Shapes<Cell>{}, shape)
                                   : fma_kernel<Cell>(BackwardFmaShapes<Cell>{}, shape);
    case Dtype::Half:
      return mma_kernel<Cell, __half>(BackwardMmaShapes<Cell>{}, shape);
    case Dtype::BFloat16:
      return mma_kernel<Cell, __nv_bfloat16>(BackwardMmaShapes<Cell>{}, shape);
    default:
      return nullptr;
  }
}

}  // namespace

BackwardKernel* cluster_backward_kernel(Cell cell, Dtype dtype, Math math, int shape) {
  switch (cell) {
    case Cell::Gru:
      return kernel_of_cell<GruGradients>(dtype, math, shape);
    case Cell::Lstm:
      return kernel_of_cell<LstmGradients>(dtype, math, shape);
    case Cell::RnnRelu:
    case Cell::RnnTanh:
      return kernel_of_cell<RnnGradients>(dtype, math, shape);
  }
  return nullptr;
}

}  // namespace aten_ext::cuda
