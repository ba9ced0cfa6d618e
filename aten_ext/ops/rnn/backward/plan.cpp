// Which kernel carries out the sequential part of a backward, and its launch in numbers.
#include "ops/rnn/backward/plan.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "core/gpu.h"
#include "core/math.h"
#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/cudnn_facts.h"

namespace aten_ext::cuda {
namespace {

// Shared memory of a block that kernels are cut for: what sm_90 gives.
constexpr size_t kMaxSharedBytes = 227 << 10;

// The largest layers of a block and of the clusters.
constexpr int64_t kBlockHidden = 128;
constexpr int64_t kClusterHidden = 256;
constexpr int64_t kClusterOf16Hidden = 512;
constexpr int64_t kGridFmaHidden = kGridFmaColumns;

// Figures: docs/kernels/rnn.md. fp32, layers beyond this with several gates: a cluster of 4 instead of a
// block, up to so many rows of a group.
constexpr int64_t kSmallBlockHidden = 64;
constexpr int kClusterOf4Rows = 3;
// Beyond, up to kClusterHidden: rows of a group up to which a cluster of 4 is faster than one of 8 with more
// (GRU, RNN).
constexpr int kRowsOfFour[2] = {1, 16};

// Rows of a group up to which a step takes less than upstream's: in a block or cluster, over the whole GPU.
// There, in 16 bits, steps grow with the gates too: rows times gates.
constexpr int kFmaRows = 16;
constexpr int kMmaRows[2] = {24, 32};
constexpr int kGridRowsOfGates = 96;

// fp32: rows of a group of multiply-adds from which TF32 is faster, up to kClusterHidden and beyond.
constexpr int kTf32FromRows[2] = {3, 5};

// The first shape that takes the recurrence, which `takes` then fills in.
template <class List, class Takes>
bool take_first(RecurrenceBackward& plan, List /*shapes*/, const Takes& takes) {
  const int index = List::first(takes);
  plan.shape = static_cast<uint8_t>(index);
  return index >= 0;
}

template <class List>
bool in_cluster(int64_t hidden, RecurrenceBackward& plan) {
  return take_first(plan, List{}, [&](auto shape) {
    using Shape = decltype(shape);
    const size_t bytes = Shape::shared_bytes(plan.rows);
    if (plan.blocks != Shape::kBlocks || hidden > Shape::kMaxHidden || bytes > kMaxSharedBytes) {
      return false;
    }
    plan.units = Shape::kUnits;
    plan.threads = Shape::kThreads;
    plan.shared_bytes = static_cast<int>(bytes);
    return true;
  });
}

bool on_grid(RecurrenceBackward& plan, int units, size_t bytes, int64_t words_of_group) {
  plan.units = units;
  plan.threads = kGridThreads;
  plan.shared_bytes = static_cast<int>(bytes);
  plan.words = 2 * (plan.grid / plan.blocks) * words_of_group;
  return bytes <= kMaxSharedBytes;
}

template <class Sizes>
bool grid_fma(int64_t hidden, RecurrenceBackward& plan) {
  using Shape = BackwardGridFmaShape<Sizes>;
  plan.shape = 0;
  return hidden <= kGridFmaHidden && int64_t{plan.blocks} * kBackwardGridFmaUnits >= hidden &&
         has_units_for_all(plan.blocks, kBackwardGridFmaUnits, hidden) &&
         on_grid(plan, kBackwardGridFmaUnits, Shape::shared_bytes(plan.rows),
                 backward_grid_fma_words<Sizes>(plan.rows));
}

template <class List>
bool grid_mma(int64_t hidden, RecurrenceBackward& plan) {
  return int64_t{plan.blocks} * kGridMmaUnits >= hidden &&
         has_units_for_all(plan.blocks, kGridMmaUnits, hidden) && take_first(plan, List{}, [&](auto shape) {
           using Shape = decltype(shape);
           return hidden <= Shape::kMaxHidden &&
                  on_grid(plan, kGridMmaUnits, Shape::shared_bytes(plan.rows), Shape::words(plan.rows));
         });
}

template <class Sizes>
bool choose_kernel_of(int64_t hidden, Dtype dtype, RecurrenceBackward& plan) {
  const bool grid = plan.exchange == Exchange::Grid;
  if ((plan.math == Math::Mma) == (dtype == Dtype::Float)) {
    return false;
  }
  switch (plan.math) {
    case Math::Fma:
      return grid ? grid_fma<Sizes>(hidden, plan) : in_cluster<BackwardFmaShapes<Sizes>>(hidden, plan);
    case Math::Mma:
      return grid ? grid_mma<BackwardGridMmaShapes<Sizes>>(hidden, plan)
                  : in_cluster<BackwardMmaShapes<Sizes>>(hidden, plan);
    case Math::MmaTf32:
      return grid ? grid_mma<BackwardGridTf32Shapes<Sizes>>(hidden, plan)
                  : in_cluster<BackwardTf32Shapes<Sizes>>(hidden, plan);
  }
  return false;
}

// Clusters that are resident at once.
int clusters(const Gpu& gpu, int blocks) {
  int log2 = 0;
  while (1 << log2 < blocks) {
    ++log2;
  }
  return gpu.clusters[log2];
}

// The batch dealt out to as many groups as the GPU takes at once.
bool deal(const RecurrenceBackwardSizes& sizes, const Gpu& gpu, Exchange exchange, int blocks,
          RecurrenceBackward& plan) {
  const int at_once = exchange == Exchange::Block     ? gpu.multiprocessors
                      : exchange == Exchange::Cluster ? clusters(gpu, blocks)
                                                      : gpu.multiprocessors / blocks;
  const int groups = at_once / sizes.directions;
  plan.exchange = exchange;
  plan.blocks = blocks;
  plan.rows = groups > 0 ? static_cast<int>(ceil_div(sizes.batch, int64_t{groups})) : 0;
  return groups > 0;
}

// The blocks for the math, the smallest exchange first.
bool place(const RecurrenceBackwardSizes& sizes, Cell cell, Dtype dtype, const Gpu& gpu, Math math,
           RecurrenceBackward& plan) {
  plan.math = math;
  const int64_t hidden = sizes.hidden;
  const auto takes = [&](Exchange exchange, int blocks) {
    return (exchange != Exchange::Cluster || gpu.code >= 90) && deal(sizes, gpu, exchange, blocks, plan) &&
           choose_backward_kernel(sizes, cell, dtype, plan) && plan.shared_bytes <= gpu.shared_bytes;
  };
  const bool several_gates = cell == Cell::Gru || cell == Cell::Lstm;
  if (math == Math::Fma && several_gates && hidden > kSmallBlockHidden && hidden <= kBlockHidden &&
      takes(Exchange::Cluster, 4) && plan.rows <= kClusterOf4Rows) {
    return true;
  }
  if (math == Math::Fma && hidden > kBlockHidden && hidden <= kClusterHidden && takes(Exchange::Cluster, 4) &&
      plan.rows <= kRowsOfFour[cell != Cell::Gru]) {
    const RecurrenceBackward of_four = plan;
    if (!takes(Exchange::Cluster, 8) || of_four.rows < plan.rows) {
      plan = of_four;
      return true;
    }
  }
  const int64_t units = math == Math::Fma ? kBackwardGridFmaUnits : kGridMmaUnits;
  return (hidden <= kBlockHidden && takes(Exchange::Block, 1)) ||
         (hidden <= kClusterHidden && takes(Exchange::Cluster, 8)) ||
         (hidden <= kClusterOf16Hidden && takes(Exchange::Cluster, 16)) ||
         takes(Exchange::Grid, static_cast<int>(ceil_div(hidden, units)));
}

// Places the recurrence, or says why not.
const char* place_or_reason(const RecurrenceBackwardSizes& sizes, Cell cell, Dtype dtype, const Gpu& gpu,
                            Math math, RecurrenceBackward& plan) {
  if (!place(sizes, cell, dtype, gpu, math, plan)) {
    RecurrenceBackwardSizes one_row = sizes;
    one_row.batch = 1;
    return place(one_row, cell, dtype, gpu, math, plan) ? "batch too large for the hidden size"
                                                        : "hidden size without a kernel";
  }
  const bool grid = plan.exchange == Exchange::Grid;
  const bool few = plan.rows <= (plan.math == Math::Fma ? kFmaRows : kMmaRows[grid]);
  const bool fast = !grid || plan.math != Math::Mma || plan.rows * gates_of(cell) <= kGridRowsOfGates;
  return few && fast ? nullptr : "batch too large for the hidden size";
}

}  // namespace

bool choose_backward_kernel(const RecurrenceBackwardSizes& sizes, Cell cell, Dtype dtype,
                            RecurrenceBackward& plan) {
  plan.words = 0;
  plan.grid = plan.blocks * ceil_div(sizes.batch, int64_t{plan.rows}) * sizes.directions;
  switch (cell) {
    case Cell::Gru:
      return choose_kernel_of<GruBackwardSizes>(sizes.hidden, dtype, plan);
    case Cell::Lstm:
      return choose_kernel_of<LstmBackwardSizes>(sizes.hidden, dtype, plan);
    case Cell::RnnRelu:
    case Cell::RnnTanh:
      return choose_kernel_of<RnnBackwardSizes>(sizes.hidden, dtype, plan);
  }
  return false;
}

Choice<RecurrenceBackward> choose_recurrence_backward(const RecurrenceBackwardSizes& sizes, Cell cell,
                                                      Dtype dtype, bool tf32, const Gpu& gpu) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (sizes.steps > kMax / 256 || sizes.batch > kMax / 256 || sizes.hidden > kMax / 256 ||
      sizes.steps * sizes.batch > kMax) {
    return "sizes beyond 32 bits";
  }
  RecurrenceBackward plan{};
  const bool sixteen_bits = dtype != Dtype::Float;
  const char* reason = place_or_reason(sizes, cell, dtype, gpu, sixteen_bits ? Math::Mma : Math::Fma, plan);
  const bool may_tf32 = tf32 && !sixteen_bits && sizes.hidden % kTf32Vector == 0 &&
                        has_tf32_state(cell, sizes.batch, sizes.hidden);  // as in the forward
  if (may_tf32 && (reason != nullptr || plan.rows >= kTf32FromRows[sizes.hidden > kClusterHidden])) {
    RecurrenceBackward with_tf32{};
    const char* const reason_of_tf32 = place_or_reason(sizes, cell, dtype, gpu, Math::MmaTf32, with_tf32);
    if (reason_of_tf32 == nullptr) {
      plan = with_tf32;
      reason = nullptr;
    }
  }
  if (reason != nullptr) {
    return reason;
  }
  if (const char* lacking = lacks(gpu, plan.needs())) {
    return lacking;
  }
  return plan;
}

std::string RecurrenceBackward::describe() const {
  const std::string where = exchange == Exchange::Block ? "a block"
                            : exchange == Exchange::Cluster
                                ? "a cluster of " + std::to_string(blocks) + " blocks"
                                : std::to_string(blocks) + " blocks over the GPU";
  const char* const with = math == Math::Fma   ? "fp32 multiply-adds"
                           : math == Math::Mma ? "tensor cores"
                                               : "TF32 tensor cores";
  return "backward in one launch: groups of " + std::to_string(rows) + " rows, each " + where + ", " + with;
}

Needs RecurrenceBackward::needs() const {
  Needs needs;
  needs.code = 80;  // tensor cores and asynchronous copies
  needs.shared_bytes = shared_bytes;
  if (exchange == Exchange::Cluster) {
    needs.code = 90;
    needs.cluster = blocks;
  } else if (exchange == Exchange::Grid) {
    needs.resident_blocks = grid;
  }
  return needs;
}

}  // namespace aten_ext::cuda
