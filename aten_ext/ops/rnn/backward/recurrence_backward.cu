// The sequential part of the backward of a recurrent layer, all steps and both directions in one launch.
//
// As in the forward (ops/rnn/recurrence.cu), W_hh stays in the registers of the blocks that share it, and a
// step is arithmetic on registers and an exchange. Of dh_{t-1} = carried + dgates_t W_hh a step needs the
// gates' gradients of all units: within a cluster blocks hand each other their parts of the sums
// (cluster_fma.cuh, cluster_mma.cuh; cluster_backward.cu), over the whole GPU the gradients themselves
// (grid_fma.cuh, grid_mma.cuh; here).
//
// Bytes, read: 4 * coefficients * batch * hidden a step and direction, and dy; written: the gates' gradients.
// FLOPs: 2 * gates * batch * hidden^2 a step and direction. The limit is neither, but latency.
#include "ops/rnn/backward/recurrence_backward.h"

#include "core/math.h"
#include "ops/rnn/backward/grid_fma.cuh"
#include "ops/rnn/backward/grid_mma.cuh"
#include "ops/rnn/backward/launch.h"

namespace aten_ext::cuda {
namespace {

template <typename Cell, typename Element, typename Coefficient, typename... S>
BackwardKernel* grid_mma_kernel(Shapes<S...> /*shapes*/, int shape) {
  static BackwardKernel kernels[] = {{backward_grid_mma_kernel<Cell, Element, Coefficient, S>, {}}...};
  return kernels + shape;
}

template <typename Cell, typename Element>
BackwardKernel* grid_16_bits_kernel(bool saved, int shape) {
  const BackwardGridMmaShapes<Cell> shapes{};
  if constexpr (Cell::kOfState >= 0) {
    if (saved) {
      return grid_mma_kernel<Cell, Element, SavedBits<Element>>(shapes, shape);
    }
  }
  return grid_mma_kernel<Cell, Element, float>(shapes, shape);
}

template <typename Cell>
BackwardKernel* grid_kernel(Dtype dtype, bool saved, Math math, int shape) {
  static BackwardKernel fma{backward_grid_fma_kernel<Cell>, {}};
  switch (dtype) {
    case Dtype::Float:
      return math == Math::MmaTf32 ? grid_mma_kernel<Cell, Tf32, float>(BackwardGridTf32Shapes<Cell>{}, shape)
                                   : &fma;
    case Dtype::Half:
      return grid_16_bits_kernel<Cell, __half>(saved, shape);
    case Dtype::BFloat16:
      return grid_16_bits_kernel<Cell, __nv_bfloat16>(saved, shape);
    default:
      return nullptr;
  }
}

BackwardKernel* kernel_of(const RecurrenceBackwardParams& p) {
  if (p.plan.exchange != Exchange::Grid) {
    return cluster_backward_kernel(p.cell, p.dtype, p.saved, p.plan.math, p.plan.shape);
  }
  switch (p.cell) {
    case Cell::Gru:
      return grid_kernel<GruGradients>(p.dtype, p.saved, p.plan.math, p.plan.shape);
    case Cell::Lstm:
      return grid_kernel<LstmGradients>(p.dtype, p.saved, p.plan.math, p.plan.shape);
    case Cell::RnnRelu:
    case Cell::RnnTanh:
      return grid_kernel<RnnGradients>(p.dtype, p.saved, p.plan.math, p.plan.shape);
  }
  return nullptr;
}

BackwardArguments arguments(const RecurrenceBackwardParams& p) {
  BackwardArguments a{};
  a.direction[0] = p.direction[0];
  a.direction[1] = p.direction[1];
  a.steps = static_cast<int>(p.steps);
  a.batch = p.batch;
  a.hidden = p.hidden;
  a.groups = ceil_div(p.batch, p.plan.rows);
  a.rows = p.plan.rows;
  a.blocks = p.plan.blocks;
  a.units = p.plan.units;
  a.dy_step = p.dy_step;
  a.dy_row = p.dy_row;
  a.words = p.words;
  return a;
}

// Clusters above this size are beyond what every GPU with clusters takes, and have to be allowed.
constexpr int kPortableBlocks = 8;

}  // namespace

cudaError_t launch_recurrence_backward(const RecurrenceBackwardParams& p, cudaStream_t stream) {
  BackwardKernel* const kernel = kernel_of(p);
  if (kernel == nullptr) {
    return cudaErrorInvalidDeviceFunction;
  }
  const bool in_cluster = p.plan.exchange == Exchange::Cluster;
  if (const cudaError_t error =
          kernel->attributes.allow(kernel->function, in_cluster && p.plan.blocks > kPortableBlocks);
      error != cudaSuccess) {
    return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.plan.grid));
  config.blockDim = dim3(static_cast<unsigned>(p.plan.threads));
  config.dynamicSmemBytes = static_cast<size_t>(p.plan.shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  config.attrs = &attribute;
  if (in_cluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(p.plan.blocks);
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.numAttrs = 1;
  } else if (p.plan.exchange == Exchange::Grid) {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    config.numAttrs = 1;
  }
  return cudaLaunchKernelEx(&config, kernel->function, arguments(p));
}

}  // namespace aten_ext::cuda
