// The recurrence of a GRU layer, all steps and both directions in one launch: which kernel, and its launch.
//
// W_hh does not change from step to step, and an SM's registers hold 256 KB: H = 512 in fp32 (3 MB) fits into
// those of 16 SMs, so each block keeps its slice for the whole sequence and reads no weight again. What is
// left of a step is arithmetic on registers and a handful of values to exchange. Formula:
// device/gru_arguments.cuh. Budgets of a step, and what was measured: device/gru_cluster_fma.cuh and
// device/gru_cluster_mma.cuh where a block or a cluster has the whole state (which: gru_cluster.cu),
// device/gru_grid.cuh over the whole GPU (here; fp32 beyond the registers: device/gru_fma.cuh).
//
// Bytes: the projections x are read once, 12 * batch * hidden a step and direction; y is written once. FLOPs:
// 6 * batch * hidden^2 a step and direction. The limit is neither, but latency: on an H200 a cluster barrier
// takes 0.24 us, an exchange through distributed shared memory as much, a barrier over 132 blocks through
// global memory 0.93; upstream's chain of kernels 4.8 to 6.1 us a step.
#include "cuda/cudnn_rnn.h"

#include <algorithm>

#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_exchange.cuh"
#include "cuda/device/gru_fma.cuh"
#include "cuda/device/gru_grid_fma.cuh"
#include "cuda/device/gru_grid_mma.cuh"
#include "cuda/gru_launch.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Shared memory of a block beyond which no launch is tried: what sm_90 gives; other devices refuse for
// themselves.
constexpr size_t kMostSharedBytes = 227 << 10;
// Blocks that ask the driver how many clusters fit have an SM to themselves.
constexpr int kWholeSmBytes = 200 << 10;

// Over the whole GPU on tensor cores: rows of a group that are finished by two lanes a unit, and rows of a
// tile.
constexpr int kRowsToShare = 4;
constexpr int kRowsOfTile = 8;

using Kernel = void (*)(GruArguments);

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

template <typename Shape>
Launch choose_fma_shape(const RecurrenceParams& p) {
  Launch launch;
  const int warps = divide_up(divide_up(p.hidden, p.blocks), Shape::kUnitsOfWarp);
  const int beyond = std::max(0, divide_up(p.hidden, Shape::kColumns) - Shape::kVectors);
  if (warps * 32 > Shape::kThreads) {
    return launch;
  }
  const size_t without = Shape::shared_bytes(p.hidden, p.rows, warps, 0);
  const size_t one = Shape::shared_bytes(p.hidden, p.rows, warps, 1) - without;
  if (without > kMostSharedBytes) {
    return launch;
  }
  launch.kernel = gru_fma_kernel<Shape>;
  launch.units = warps * Shape::kUnitsOfWarp;
  launch.threads = warps * 32;
  launch.shared_vectors = std::min(beyond, static_cast<int>((kMostSharedBytes - without) / one));
  launch.shared_bytes = without + launch.shared_vectors * one;
  return launch;
}

// One row of the batch at a time, or several: they share the reads of weights that are not in registers, and
// the sums over lanes.
//
// W_hh does not fit into the registers: the rest in shared memory and in the L2.
Launch choose_fma(const RecurrenceParams& p) {
  return p.rows == 1 ? choose_fma_shape<GruFmaShape<256, 32, 2, 8, 1>>(p)
                     : choose_fma_shape<GruFmaShape<256, 32, 2, 8, 2>>(p);
}

// Over the whole GPU on tensor cores: how many times 16 columns a warp has.
int grid_mma_steps(const RecurrenceParams& p) {
  if (p.math == RecurrenceMath::MmaTf32 && p.hidden <= kGridMmaFewSteps * 16 * kGridWarps) {
    return kGridMmaFewSteps;
  }
  return p.hidden <= kGridMmaSteps * 16 * kGridWarps ? kGridMmaSteps : kGridMmaMoreSteps;
}

// Over the whole GPU: the first kernel that takes the group's rows.
template <typename Shape>
void choose_grid_shape(const RecurrenceParams& p, Kernel kernel, int units, Launch& launch) {
  if (launch.kernel == nullptr && p.rows <= Shape::Finish::kMostRows) {
    launch.kernel = kernel;
    launch.units = units;
    launch.threads = kGridThreads;
    launch.shared_bytes = Shape::bytes(p.rows);
  }
}

template <typename... Shapes>
Launch choose_grid_fma(const RecurrenceParams& p) {
  Launch launch;
  (choose_grid_shape<Shapes>(p, gru_grid_fma_kernel<Shapes>, Shapes::kUnits, launch), ...);
  return launch;
}

template <typename... Shapes>
Launch choose_grid_mma_shape(const RecurrenceParams& p) {
  Launch launch;
  (choose_grid_shape<Shapes>(p, gru_grid_mma_kernel<Shapes>, kGridMmaUnits, launch), ...);
  return launch;
}
template <typename Element, int kSteps>
Launch choose_grid_mma(const RecurrenceParams& p) {
  return p.rows <= kRowsToShare ? choose_grid_mma_shape<GruGridMmaShape<Element, kSteps, 2, 1, 1>>(p)
                                : choose_grid_mma_shape<GruGridMmaShape<Element, kSteps, 1, 1, 1>,
                                                        GruGridMmaShape<Element, kSteps, 1, 2, 1>>(p);
}

// In TF32 a smaller layer leaves registers for the words of two tiles of rows at once.
Launch choose_grid_few_steps(const RecurrenceParams& p) {
  return p.rows <= kRowsOfTile ? choose_grid_mma_shape<GruGridMmaShape<Tf32, kGridMmaFewSteps, 1, 1, 1>>(p)
                               : choose_grid_mma_shape<GruGridMmaShape<Tf32, kGridMmaFewSteps, 1, 1, 2>,
                                                       GruGridMmaShape<Tf32, kGridMmaFewSteps, 1, 2, 2>>(p);
}

template <typename Element>
Launch choose_grid_16_bits(const RecurrenceParams& p) {
  return grid_mma_steps(p) == kGridMmaSteps ? choose_grid_mma<Element, kGridMmaSteps>(p)
                                            : choose_grid_mma<Element, kGridMmaMoreSteps>(p);
}

// In registers alone.
bool is_small_grid(const RecurrenceParams& p) {
  return p.exchange == RecurrenceExchange::Grid &&
         p.hidden <= (p.math == RecurrenceMath::Mma ? 2 : 1) * kGridFmaColumns;
}

Launch choose_grid(const RecurrenceParams& p) {
  if (p.math == RecurrenceMath::Fma) {
    if (p.blocks * 8 < p.hidden) {
      return p.blocks * 16 < p.hidden
                 ? Launch{}
                 : choose_grid_fma<GruGridFmaShape<16, 1, 2, 1>, GruGridFmaShape<16, 1, 1, 2>>(p);
    }
    switch (p.rows) {
      case 1:
        return choose_grid_fma<GruGridFmaShape<8, 1, 4, 1>>(p);
      case 2:
        return choose_grid_fma<GruGridFmaShape<8, 2, 4, 1>>(p);
      default:
        return choose_grid_fma<GruGridFmaShape<8, 4, 4, 1>, GruGridFmaShape<8, 4, 1, 1>>(p);
    }
  }
  if (p.blocks * kGridMmaUnits < p.hidden) {
    return {};
  }
  if (p.math == RecurrenceMath::MmaTf32) {
    return grid_mma_steps(p) == kGridMmaFewSteps ? choose_grid_few_steps(p)
                                                 : choose_grid_mma<Tf32, kGridMmaSteps>(p);
  }
  return p.dtype == RecurrenceDtype::Half ? choose_grid_16_bits<__half>(p)
                                          : choose_grid_16_bits<__nv_bfloat16>(p);
}

Launch choose(const RecurrenceParams& p) {
  if (p.exchange != RecurrenceExchange::Grid) {
    return choose_cluster(p);
  }
  if (is_small_grid(p)) {
    return choose_grid(p);
  }
  return p.math == RecurrenceMath::Fma ? choose_fma(p) : Launch{};
}

// ---- launch ------------------------------------------------------------------------------------------

// A launch's configuration with the attribute it needs, which it points to: stays where it is made.
struct Configuration {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute{};

  Configuration(const RecurrenceParams& p, const Launch& launch, cudaStream_t stream) {
    config.gridDim = dim3(static_cast<unsigned>(p.blocks * divide_up(p.batch, p.rows) * p.directions));
    config.blockDim = dim3(static_cast<unsigned>(launch.threads));
    config.dynamicSmemBytes = launch.shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    if (p.exchange == RecurrenceExchange::Cluster) {
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = static_cast<unsigned>(p.blocks);
      attribute.val.clusterDim.y = 1;
      attribute.val.clusterDim.z = 1;
      config.numAttrs = 1;
    } else if (p.exchange == RecurrenceExchange::Grid) {
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
      config.numAttrs = 1;
    }
  }
  Configuration(const Configuration&) = delete;
  Configuration& operator=(const Configuration&) = delete;
};

// What a kernel needs beyond the ordinary: shared memory above 48 KB, clusters above 8 blocks.
cudaError_t allow(const RecurrenceParams& p, const Launch& launch) {
  cudaError_t error = cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(launch.shared_bytes));
  if (error == cudaSuccess && p.exchange == RecurrenceExchange::Cluster && p.blocks > 8) {
    error = cudaFuncSetAttribute(launch.kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  return error;
}

GruArguments arguments(const RecurrenceParams& p, const Launch& launch) {
  GruArguments a{};
  for (int i = 0; i < p.directions; ++i) {
    const RecurrenceDirection& from = p.direction[i];
    a.direction[i] = {from.w_hh, from.b_ih, from.b_hh, from.gates, from.h0, from.hy, from.y};
  }
  a.steps = p.steps;
  a.gate_step = p.gate_step;
  a.gate_row = p.gate_row;
  a.y_step = p.y_step;
  a.y_row = p.y_row;
  a.batch = p.batch;
  a.hidden = p.hidden;
  a.groups = divide_up(p.batch, p.rows);
  a.rows = p.rows;
  a.blocks = p.blocks;
  a.units = launch.units;
  a.shared_vectors = launch.shared_vectors;
  a.words = p.words;
  return a;
}

// Whether an error says that the device cannot do it, and nothing worse. The runtime remembers the last
// error: it is taken back, so that no one else stumbles over it.
bool is_refusal(cudaError_t error) {
  if (error != cudaErrorInvalidValue && error != cudaErrorInvalidConfiguration &&
      error != cudaErrorNotSupported && error != cudaErrorInvalidClusterSize &&
      error != cudaErrorCooperativeLaunchTooLarge && error != cudaErrorNoKernelImageForDevice) {
    return false;
  }
  (void)cudaGetLastError();
  return true;
}

}  // namespace

int64_t exchange_words(const RecurrenceParams& p) {
  if (p.exchange != RecurrenceExchange::Grid) {
    return 0;
  }
  const int64_t groups = divide_up(p.batch, p.rows) * p.directions;
  if (!is_small_grid(p)) {
    return 2 * static_cast<int64_t>(p.directions) * p.batch * p.hidden;
  }
  if (p.math == RecurrenceMath::Fma) {
    return 2 * groups * gru_grid_fma_words(p.rows);
  }
  return 2 * groups * gru_grid_mma_words(p.rows, grid_mma_steps(p));
}

cudaError_t query_recurrence_device(int code_major, RecurrenceDevice& device) {
  device = {};
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, current);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&device.compute_major, cudaDevAttrComputeCapabilityMajor, current);
  }
  device.compute_major = std::min(device.compute_major, code_major);
  for (int i = 0; i < 3 && error == cudaSuccess && device.compute_major >= 9; ++i) {
    RecurrenceParams p{};
    p.exchange = RecurrenceExchange::Cluster;
    p.math = RecurrenceMath::MmaTf32;  // which has a kernel for clusters of each size
    p.blocks = 4 << i;
    p.rows = p.batch = p.directions = 1;
    p.hidden = 256;
    Launch launch = choose_cluster(p);
    launch.shared_bytes = kWholeSmBytes;
    Configuration configuration(p, launch, nullptr);
    error = allow(p, launch);
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveClusters(&device.clusters[i], launch.kernel, &configuration.config);
    }
    if (is_refusal(error)) {
      device.clusters[i] = 0;
      error = cudaSuccess;
    }
  }
  return error;
}

cudaError_t query_recurrence_launch(const RecurrenceParams& p, bool& fits) {
  fits = false;
  const Launch launch = choose(p);
  if (launch.kernel == nullptr) {
    return cudaSuccess;
  }
  cudaError_t error = allow(p, launch);
  int count = 0;
  if (error == cudaSuccess && p.exchange == RecurrenceExchange::Cluster) {
    Configuration configuration(p, launch, nullptr);
    error = cudaOccupancyMaxActiveClusters(&count, launch.kernel, &configuration.config);
    fits = count > 0;
  } else if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, launch.kernel, launch.threads,
                                                          launch.shared_bytes);
    fits = count > 0;
    if (error == cudaSuccess && p.exchange == RecurrenceExchange::Grid) {
      int device = 0;
      int multiprocessors = 0;
      error = cudaGetDevice(&device);
      if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      }
      fits = count * multiprocessors >= p.blocks * divide_up(p.batch, p.rows) * p.directions;
    }
  }
  if (error != cudaSuccess) {
    fits = false;
    return is_refusal(error) ? cudaSuccess : error;
  }
  return cudaSuccess;
}

cudaError_t launch_recurrence(const RecurrenceParams& p, cudaStream_t stream) {
  const Launch launch = choose(p);
  if (launch.kernel == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = allow(p, launch); error != cudaSuccess) {
    return error;
  }
  Configuration configuration(p, launch, stream);
  return cudaLaunchKernelEx(&configuration.config, launch.kernel, arguments(p, launch));
}

}  // namespace aten_ext::cuda
