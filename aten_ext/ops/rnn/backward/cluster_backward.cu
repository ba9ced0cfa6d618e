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

template <typename Cell, typename Element, typename Coefficient, typename... S>
BackwardKernel* mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static BackwardKernel kernels[] = {{backward_cluster_mma_kernel<Cell, Element, Coefficient, S>, {}}...};
  return kernels + shape;
}

template <typename Cell, typename Element>
BackwardKernel* kernel_of_16_bits(bool saved, int shape) {
  const BackwardMmaShapes<Cell> shapes{};
  if constexpr (Cell::kOfState >= 0) {
    if (saved) {
      return mma_kernel<Cell, Element, SavedBits<Element>>(shapes, shape);
    }
  }
  return mma_kernel<Cell, Element, float>(shapes, shape);
}

template <typename Cell>
BackwardKernel* kernel_of_cell(Dtype dtype, bool saved, Math math, int shape) {
  switch (dtype) {
    case Dtype::Float:
      return math == Math::MmaTf32 ? mma_kernel<Cell, Tf32, float>(BackwardTf32Shapes<Cell>{}, shape)
                                   : fma_kernel<Cell>(BackwardFmaShapes<Cell>{}, shape);
    case Dtype::Half:
      return kernel_of_16_bits<Cell, __half>(saved, shape);
    case Dtype::BFloat16:
      return kernel_of_16_bits<Cell, __nv_bfloat16>(saved, shape);
    default:
      return nullptr;
  }
}

}  // namespace

BackwardKernel* cluster_backward_kernel(Cell cell, Dtype dtype, bool saved, Math math, int shape) {
  switch (cell) {
    case Cell::Gru:
      return kernel_of_cell<GruGradients>(dtype, saved, math, shape);
    case Cell::Lstm:
      return kernel_of_cell<LstmGradients>(dtype, saved, math, shape);
    case Cell::RnnRelu:
    case Cell::RnnTanh:
      return kernel_of_cell<RnnGradients>(dtype, saved, math, shape);
  }
  return nullptr;
}

}  // namespace aten_ext::cuda
