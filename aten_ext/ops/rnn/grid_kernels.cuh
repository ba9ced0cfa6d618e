// The kernels of a cell's recurrence over the whole GPU, as choose_kernel() counts them. A .cu file a cell
// takes them from here.
#pragma once

#include "ops/rnn/cell_shapes.h"
#include "ops/rnn/cells.cuh"
#include "ops/rnn/fma.cuh"
#include "ops/rnn/grid_fma.cuh"
#include "ops/rnn/grid_mma.cuh"
#include "ops/rnn/launch.h"

namespace aten_ext::cuda {

template <typename Cell, typename... S>
RecurrenceKernel* fma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_fma_kernel<Cell, S>, {}}...};
  return kernels + shape;
}

template <typename Cell, typename... S>
RecurrenceKernel* grid_fma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_grid_fma_kernel<Cell, S>, {}}...};
  return kernels + shape;
}

template <typename Cell, typename Element, typename... S>
RecurrenceKernel* grid_mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static RecurrenceKernel kernels[] = {{rnn_grid_mma_kernel<Cell, Element, S>, {}}...};
  return kernels + shape;
}

template <typename Cell>
RecurrenceKernel* grid_kernel_of(Dtype dtype, const Recurrence& plan) {
  using Lists = CellShapes<typename Cell::Sizes>;
  using MmaList = typename Lists::GridMma;
  const int shape = plan.shape;
  if (plan.family == KernelFamily::Fma) {
    if constexpr (Cell::kSaves) {
      return nullptr;
    } else {
      return fma_kernel<Cell>(typename Lists::Fma{}, shape);
    }
  }
  switch (dtype) {
    case Dtype::Float:
      return plan.math == Math::MmaTf32 ? grid_mma_kernel<Cell, Tf32>(typename Lists::GridTf32{}, shape)
                                        : grid_fma_kernel<Cell>(typename Lists::GridFma{}, shape);
    case Dtype::Half:
      return grid_mma_kernel<Cell, __half>(MmaList{}, shape);
    case Dtype::BFloat16:
      return grid_mma_kernel<Cell, __nv_bfloat16>(MmaList{}, shape);
    default:
      return nullptr;
  }
}

}  // namespace aten_ext::cuda
