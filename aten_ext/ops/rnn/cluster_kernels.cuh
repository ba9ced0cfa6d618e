// The kernels of a cell's recurrence where a block, or a thread-block cluster, has the whole state, as
// choose_kernel() counts them. A .cu file a cell takes them from here.
#pragma once

#include "ops/rnn/cell_shapes.h"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/cluster_fma.cuh"
#include "ops/rnn/cluster_mma.cuh"
#include "ops/rnn/launch.h"

namespace aten_ext::cuda {

// Null where there is none for the dtype.
template <typename Cell, typename T, typename Shape>
constexpr void (*cluster_fma_kernel_of())(RnnArguments) {
  if constexpr (sizeof(T) == sizeof(float) || !Shape::kFp32Alone) {
    return rnn_cluster_fma_kernel<Cell, T, Shape>;
  } else {
    return nullptr;
  }
}

template <typename Cell, typename T, typename... S>
RecurrenceKernel* cluster_fma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{cluster_fma_kernel_of<Cell, T, S>(), {}}...};
  return kernels + shape;
}

template <typename Cell, typename Element, typename... S>
RecurrenceKernel* cluster_mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_cluster_mma_kernel<Cell, Element, S>, {}}...};
  return kernels + shape;
}

template <typename Cell>
RecurrenceKernel* cluster_kernel_of(Dtype dtype, const Recurrence& plan) {
  using Lists = CellShapes<typename Cell::Sizes>;
  using FmaList = typename Lists::ClusterFma;
  using MmaList = typename Lists::ClusterMma;
  const bool mma = plan.math == Math::Mma;
  const int shape = plan.shape;
  switch (dtype) {
    case Dtype::Float:
      return plan.math == Math::MmaTf32 ? cluster_mma_kernel<Cell, Tf32>(typename Lists::ClusterTf32{}, shape)
                                        : cluster_fma_kernel<Cell, float>(FmaList{}, shape);
    case Dtype::Half:
      return mma ? cluster_mma_kernel<Cell, __half>(MmaList{}, shape)
                 : cluster_fma_kernel<Cell, __half>(FmaList{}, shape);
    case Dtype::BFloat16:
      return mma ? cluster_mma_kernel<Cell, __nv_bfloat16>(MmaList{}, shape)
                 : cluster_fma_kernel<Cell, __nv_bfloat16>(FmaList{}, shape);
    default:
      return nullptr;
  }
}

}  // namespace aten_ext::cuda
