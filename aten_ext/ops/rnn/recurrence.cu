// The launch of a layer's recurrence, all steps and both directions at once.
//
// W_hh does not change from step to step, and an SM's registers hold 256 KB: H = 512 in fp32 (3 MB) fits into
// those of 16 SMs, so each block keeps its slice for the whole sequence and reads no weight again. What is
// left of a step is arithmetic on registers and a handful of values to exchange. Formula: ops/rnn/cells.cuh.
// Kernels: ops/rnn/cluster_fma.cuh and ops/rnn/cluster_mma.cuh where a block or a cluster has the whole
// state, ops/rnn/grid.cuh over the whole GPU (fp32 beyond the registers: ops/rnn/fma.cuh), each compiled for
// the shapes of ops/rnn/cell_shapes.h. Budgets of a step, and what was measured: docs/kernels/rnn.md.
//
// Bytes: the projections x are read once, 4 * gates * batch * hidden a step and direction; y is written once.
// FLOPs: 2 * gates * batch * hidden^2 a step and direction. The limit is neither, but latency: on an H200 a
// cluster barrier takes 0.24 us, an exchange through distributed shared memory as much, a barrier over 132
// blocks through global memory 0.93; upstream's chain of kernels 4.8 to 6.1 us a step.
#include "ops/rnn/recurrence.h"

#include "core/math.h"
#include "ops/rnn/arguments.cuh"
#include "ops/rnn/launch.h"

namespace aten_ext::cuda {
namespace {

RecurrenceKernel* kernel_of(const RecurrenceParams& p) {
  const bool cluster = p.plan.family == KernelFamily::Cluster;
  if (p.direction[0].coefficients != nullptr) {
    switch (p.cell) {
      case Cell::Gru:
        return cluster ? saving_gru_cluster_kernel(p.dtype, p.plan) : saving_gru_grid_kernel(p.dtype, p.plan);
      case Cell::Lstm:
        return cluster ? saving_lstm_cluster_kernel(p.dtype, p.plan)
                       : saving_lstm_grid_kernel(p.dtype, p.plan);
      default:
        return nullptr;
    }
  }
  switch (p.cell) {
    case Cell::Gru:
      return cluster ? gru_cluster_kernel(p.dtype, p.plan) : gru_grid_kernel(p.dtype, p.plan);
    case Cell::Lstm:
      return cluster ? lstm_cluster_kernel(p.dtype, p.plan) : lstm_grid_kernel(p.dtype, p.plan);
    case Cell::RnnTanh:
      return cluster ? rnn_tanh_cluster_kernel(p.dtype, p.plan) : rnn_tanh_grid_kernel(p.dtype, p.plan);
    case Cell::RnnRelu:
      return cluster ? rnn_relu_cluster_kernel(p.dtype, p.plan) : rnn_relu_grid_kernel(p.dtype, p.plan);
  }
  return nullptr;
}

// ---- launch ------------------------------------------------------------------------------------------

// A launch's configuration with the attribute it needs, which it points to: stays where it is made.
struct Configuration {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};

  Configuration(const Recurrence& plan, cudaStream_t stream) {
    config.gridDim = dim3(static_cast<unsigned>(plan.grid));
    config.blockDim = dim3(static_cast<unsigned>(plan.threads));
    config.dynamicSmemBytes = static_cast<size_t>(plan.shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    if (plan.exchange == Exchange::Cluster) {
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = static_cast<unsigned>(plan.blocks);
      attribute.val.clusterDim.y = 1;
      attribute.val.clusterDim.z = 1;
      config.numAttrs = 1;
    } else if (plan.exchange == Exchange::Grid) {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
      config.numAttrs = 1;
    }
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;
};

RnnArguments arguments(const RecurrenceParams& p) {
  RnnArguments a{};
  for (int i = 0; i < p.directions; ++i) {
    const RecurrenceDirection& from = p.direction[i];
    a.direction[i] = {from.w_hh, from.b_ih, from.b_hh,    from.projection, from.h0,
                      from.hy,   from.y,    from.h0_fp32, from.hy_fp32};
    a.c0[i] = from.c0;
    a.cy[i] = from.cy;
    a.c0_fp32[i] = from.c0_fp32;
    a.cy_fp32[i] = from.cy_fp32;
    a.coefficients[i] = from.coefficients;
  }
  a.steps = p.steps;
  a.projection = {p.projection_step, p.projection_row};
  a.y = {p.y_step, p.y_row};
  a.batch = p.batch;
  a.hidden = p.hidden;
  a.groups = ceil_div(p.batch, p.plan.rows);
  a.rows = p.plan.rows;
  a.blocks = p.plan.blocks;
  a.units = p.plan.units;
  a.shared_vectors = p.plan.shared_vectors;
  a.words = p.words;
  return a;
}

// Clusters above this size are beyond what every GPU with clusters takes, and have to be allowed.
constexpr int kPortableBlocks = 8;

}  // namespace

cudaError_t launch_recurrence(const RecurrenceParams& p, cudaStream_t stream) {
  RecurrenceKernel* const kernel = kernel_of(p);
  if (kernel == nullptr) {
    return cudaErrorInvalidDeviceFunction;
  }
  const bool large_clusters = p.plan.exchange == Exchange::Cluster && p.plan.blocks > kPortableBlocks;
  if (const cudaError_t error = kernel->attributes.allow(kernel->function, large_clusters);
      error != cudaSuccess) {
    return error;
  }
  const Configuration configuration(p.plan, stream);
  return cudaLaunchKernelEx(&configuration.config, kernel->function, arguments(p));
}

}  // namespace aten_ext::cuda
