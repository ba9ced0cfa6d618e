// The kernels of a recurrence where a block, or a thread-block cluster, has the whole state.
#include "ops/rnn/cluster_fma.cuh"
#include "ops/rnn/cluster_mma.cuh"
#include "ops/rnn/launch.h"

namespace aten_ext::cuda {
namespace {

template <typename T, typename... S>
RecurrenceKernel* fma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_cluster_fma_kernel<GruCell, T, S>, {}}...};
  return kernels + shape;
}

template <typename Element, typename... S>
RecurrenceKernel* mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_cluster_mma_kernel<GruCell, Element, S>, {}}...};
  return kernels + shape;
}

}  // namespace

RecurrenceKernel* cluster_kernel(Dtype dtype, Math math, int shape) {
  const bool mma = math == Math::Mma;
  switch (dtype) {
    case Dtype::Float:
      return math == Math::MmaTf32 ? mma_kernel<Tf32>(ClusterTf32Shapes{}, shape)
                                   : fma_kernel<float>(ClusterFmaShapes{}, shape);
    case Dtype::Half:
      return mma ? mma_kernel<__half>(ClusterMmaShapes{}, shape)
                 : fma_kernel<__half>(ClusterFmaShapes{}, shape);
    case Dtype::BFloat16:
      return mma ? mma_kernel<__nv_bfloat16>(ClusterMmaShapes{}, shape)
                 : fma_kernel<__nv_bfloat16>(ClusterFmaShapes{}, shape);
    default:
      return nullptr;
  }
}

}  // namespace aten_ext::cuda
