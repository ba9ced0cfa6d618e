// Which kernel of a GRU layer's recurrence runs where a block, or a thread-block cluster, has the whole
// state.
#include <type_traits>

#include "cuda/device/gru_cluster_fma.cuh"
#include "cuda/device/gru_cluster_mma.cuh"
#include "cuda/gru_launch.h"

namespace aten_ext::cuda {
namespace {

constexpr size_t kMostSharedBytes = 227 << 10;

int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

template <typename T, typename Shape>
bool choose_fma_shape(const RecurrenceParams& p, Launch& launch) {
  const int warps = divide_up(divide_up(p.hidden, Shape::kBlocks), Shape::kUnitsOfWarp);
  if (p.blocks != Shape::kBlocks || warps * 32 > Shape::kThreads ||
      p.hidden > Shape::kVectors * Shape::kColumns || Shape::shared_bytes(p.rows, warps) > kMostSharedBytes) {
    return false;
  }
  launch.kernel = gru_cluster_fma_kernel<T, Shape>;
  launch.units = warps * Shape::kUnitsOfWarp;
  launch.threads = warps * 32;
  launch.shared_bytes = Shape::shared_bytes(p.rows, warps);
  return true;
}

template <typename Shape>
bool choose_mma_shape(const RecurrenceParams& p, Launch& launch) {
  const int units = divide_up(divide_up(p.hidden, p.blocks), Shape::kUnits) * Shape::kUnits;
  const int threads = Shape::warps(units) * 32;
  if (p.blocks != Shape::kBlocks || threads > Shape::kThreads || p.hidden > Shape::kColumns ||
      Shape::shared_bytes(p.rows, units) > kMostSharedBytes) {
    return false;
  }
  launch.kernel = gru_cluster_mma_kernel<Shape>;
  launch.units = units;
  launch.threads = threads;
  launch.shared_bytes = Shape::shared_bytes(p.rows, units);
  return true;
}

// The first that takes the hidden size.
template <typename T, typename... Shapes>
Launch first_fma(const RecurrenceParams& p) {
  Launch launch;
  (void)(choose_fma_shape<T, Shapes>(p, launch) || ...);
  return launch;
}
template <typename... Shapes>
Launch first_mma(const RecurrenceParams& p) {
  Launch launch;
  (void)(choose_mma_shape<Shapes>(p, launch) || ...);
  return launch;
}

// Blocks, threads, lanes of a team, its units, vectors of four weights a row and lane.
template <typename T>
Launch choose_fma(const RecurrenceParams& p) {
  return first_fma<T, GruClusterShape<1, 32, 1, 1, 4>, GruClusterShape<1, 32, 1, 1, 8>,
                   GruClusterShape<1, 128, 2, 1, 8>, GruClusterShape<1, 192, 4, 2, 6>,
                   GruClusterShape<1, 256, 4, 2, 8>, GruClusterShape<8, 256, 16, 2, 4>,
                   GruClusterShape<16, 256, 16, 2, 6>, GruClusterShape<16, 256, 16, 2, 8>>(p);
}

// Blocks, threads, warps that share a row of W_hh, pairs of mma of each, tiles of 8 rows of the batch.
template <typename Element>
Launch choose_mma(const RecurrenceParams& p) {
  if constexpr (std::is_same_v<Element, Tf32>) {
    return first_mma<GruClusterMmaShape<Element, 4, 256, 2, 8, 1>,
                     GruClusterMmaShape<Element, 8, 256, 4, 4, 1>,
                     GruClusterMmaShape<Element, 16, 256, 4, 8, 2>>(p);
  } else {
    return first_mma<
        GruClusterMmaShape<Element, 1, 128, 1, 2, 1>, GruClusterMmaShape<Element, 1, 256, 1, 4, 1>,
        GruClusterMmaShape<Element, 4, 256, 2, 4, 1>, GruClusterMmaShape<Element, 8, 256, 4, 2, 1>,
        GruClusterMmaShape<Element, 8, 256, 2, 8, 1>, GruClusterMmaShape<Element, 16, 256, 4, 4, 1>,
        GruClusterMmaShape<Element, 16, 384, 4, 5, 1>>(p);
  }
}

}  // namespace

Launch choose_cluster(const RecurrenceParams& p) {
  if (p.math == RecurrenceMath::MmaTf32) {
    return choose_mma<Tf32>(p);
  }
  const bool mma = p.math == RecurrenceMath::Mma;
  switch (p.dtype) {
    case RecurrenceDtype::Float:
      return choose_fma<float>(p);
    case RecurrenceDtype::Half:
      return mma ? choose_mma<__half>(p) : choose_fma<__half>(p);
    case RecurrenceDtype::BFloat16:
      return mma ? choose_mma<__nv_bfloat16>(p) : choose_fma<__nv_bfloat16>(p);
  }
  return {};
}

}  // namespace aten_ext::cuda
