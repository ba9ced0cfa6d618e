// Which kernel carries out a recurrence, and its launch in numbers.
#include "core/math.h"
#include "ops/rnn/cell_shapes.h"
#include "ops/rnn/plan.h"

namespace aten_ext::cuda {
namespace {

// Shared memory of a block that kernels are cut for: what sm_90 gives.
constexpr size_t kMaxSharedBytes = 227 << 10;
// Over the whole GPU on tensor cores: rows of a group up to which two lanes share a unit, and rows of a tile.
constexpr int kRowsToShare = 4;
constexpr int kRowsOfTile = 8;
constexpr int kTwoTilesHidden = 512;

// The first shape that takes the recurrence, which `takes` then fills in.
template <class List, class Takes>
bool take_first(Recurrence& r, KernelFamily family, List /*shapes*/, const Takes& takes) {
  const int index = List::first(takes);
  r.family = family;
  r.shape = static_cast<uint8_t>(index);
  return index >= 0;
}

template <class List>
bool cluster_fma(int hidden, bool sixteen_bits, Recurrence& r) {
  return take_first(r, KernelFamily::Cluster, List{}, [&](auto shape) {
    using Shape = decltype(shape);
    const int warps = ceil_div(ceil_div(hidden, Shape::kBlocks), Shape::kUnitsOfWarp);
    const size_t bytes = Shape::shared_bytes(r.rows, warps);
    if (r.blocks != Shape::kBlocks || (sixteen_bits && Shape::kFp32Alone) || warps * 32 > Shape::kThreads ||
        hidden > Shape::kVectors * Shape::kColumns || bytes > kMaxSharedBytes) {
      return false;
    }
    r.units = warps * Shape::kUnitsOfWarp;
    r.threads = warps * 32;
    r.shared_bytes = static_cast<int>(bytes);
    return true;
  });
}

template <class List>
bool cluster_mma(int hidden, Recurrence& r) {
  return take_first(r, KernelFamily::Cluster, List{}, [&](auto shape) {
    using Shape = decltype(shape);
    const int units = round_up(ceil_div(hidden, r.blocks), Shape::kUnits);
    const int threads = Shape::warps(units) * 32;
    const size_t bytes = Shape::shared_bytes(r.rows, units);
    if (r.blocks != Shape::kBlocks || threads > Shape::kThreads || hidden > Shape::kColumns ||
        bytes > kMaxSharedBytes) {
      return false;
    }
    r.units = units;
    r.threads = threads;
    r.shared_bytes = static_cast<int>(bytes);
    return true;
  });
}

// Over the whole GPU: a kernel that takes the group's rows.
template <class Shape>
void set_grid(Recurrence& r, int units, int64_t words_of_group) {
  r.units = units;
  r.threads = kGridThreads;
  r.shared_bytes = static_cast<int>(Shape::shared_bytes(r.rows));
  r.words = 2 * (r.grid / r.blocks) * words_of_group;
}

// Units of a block, and rows at once that share the reads of weights.
template <class CellShapes>
bool grid_fma(int hidden, Recurrence& r) {
  const int units = r.blocks * 8 < hidden ? 16 : 8;
  const int at_once = units == 16 ? 1 : r.rows <= 2 ? r.rows : CellShapes::kGridFmaRows;
  using List = typename CellShapes::GridFma;
  return r.blocks * units >= hidden && take_first(r, KernelFamily::Grid, List{}, [&](auto shape) {
           using Shape = decltype(shape);
           if (Shape::kUnits != units || Shape::kRows != at_once || r.rows > Shape::Finish::kMaxRows) {
             return false;
           }
           set_grid<Shape>(r, units, grid_fma_words(r.rows));
           return true;
         });
}

template <class List>
bool grid_mma(int hidden, Recurrence& r) {
  constexpr int kColumns = 16 * kGridWarps;
  return r.blocks * kGridMmaUnits >= hidden && take_first(r, KernelFamily::Grid, List{}, [&](auto shape) {
           using Shape = decltype(shape);
           // Where there is a shape for two tiles at once, a tile alone has one of its own.
           constexpr bool kOneTile = Shape::kSteps * kColumns == kTwoTilesHidden && Shape::kTiles == 1;
           const int max_rows = Shape::kParts > 1 ? kRowsToShare
                                : kOneTile        ? kRowsOfTile
                                                  : Shape::Finish::kMaxRows;
           if (hidden > Shape::kSteps * kColumns || r.rows > max_rows ||
               Shape::shared_bytes(r.rows) > kMaxSharedBytes) {
             return false;
           }
           set_grid<Shape>(r, kGridMmaUnits, grid_mma_words(r.rows, Shape::kSteps));
           return true;
         });
}

// W_hh does not fit into the registers: the rest in shared memory and in the L2. One row of the batch at a
// time, or several: they share the reads of weights that are not in registers, and the sums over lanes.
template <class List>
bool fma(const RnnProblem& problem, Recurrence& r) {
  const int hidden = static_cast<int>(problem.hidden);
  r.words = 2 * static_cast<int64_t>(problem.directions) * problem.sequence.batch * hidden;
  return take_first(r, KernelFamily::Fma, List{}, [&](auto shape) {
    using Shape = decltype(shape);
    const int warps = ceil_div(ceil_div(hidden, r.blocks), Shape::kUnitsOfWarp);
    const size_t without = Shape::shared_bytes(hidden, r.rows, warps, 0);
    if (Shape::kRows != (r.rows == 1 ? 1 : 2) || warps * 32 > Shape::kThreads || without > kMaxSharedBytes) {
      return false;
    }
    const size_t vector = Shape::shared_bytes(hidden, r.rows, warps, 1) - without;
    const int beyond = std::max(0, ceil_div(hidden, Shape::kColumns) - Shape::kVectors);
    r.units = warps * Shape::kUnitsOfWarp;
    r.threads = warps * 32;
    r.shared_vectors = std::min(beyond, static_cast<int>((kMaxSharedBytes - without) / vector));
    r.shared_bytes = static_cast<int>(without + r.shared_vectors * vector);
    return true;
  });
}

template <class CellShapes>
bool choose_kernel_of(const RnnProblem& problem, Recurrence& r) {
  const int hidden = static_cast<int>(problem.hidden);
  if (r.exchange == Exchange::Grid) {
    if (hidden > (r.math == Math::Mma ? 2 : 1) * kGridFmaColumns) {  // beyond the registers
      return r.math == Math::Fma && problem.dtype == Dtype::Float &&
             fma<typename CellShapes::Fma>(problem, r);
    }
    switch (r.math) {
      case Math::Fma:
        return problem.dtype == Dtype::Float && grid_fma<CellShapes>(hidden, r);
      case Math::Mma:
        return problem.is_16_bits() && grid_mma<typename CellShapes::GridMma>(hidden, r);
      case Math::MmaTf32:
        return problem.dtype == Dtype::Float && grid_mma<typename CellShapes::GridTf32>(hidden, r);
    }
  }
  switch (r.math) {
    case Math::Fma:
      return cluster_fma<typename CellShapes::ClusterFma>(hidden, problem.is_16_bits(), r);
    case Math::Mma:
      return problem.is_16_bits() && cluster_mma<typename CellShapes::ClusterMma>(hidden, r);
    case Math::MmaTf32:
      return problem.dtype == Dtype::Float && cluster_mma<typename CellShapes::ClusterTf32>(hidden, r);
  }
  return false;
}

}  // namespace

bool choose_kernel(const RnnProblem& problem, Recurrence& r) {
  r.shared_vectors = 0;
  r.words = 0;
  r.grid = r.blocks * ceil_div(problem.sequence.batch, int64_t{r.rows}) * problem.directions;
  const bool taken = with_sizes(
      problem.cell, [&](auto sizes) { return choose_kernel_of<CellShapes<decltype(sizes)>>(problem, r); });
  return taken && (r.exchange != Exchange::Grid || has_units_for_all(r.blocks, r.units, problem.hidden));
}

}  // namespace aten_ext::cuda
