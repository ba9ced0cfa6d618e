// The policy of the GRU kernels: measured on an H200, figures in cuda/device/gru_*.cuh. Upstream takes 4.8 to
// 9 us a step, but 0.35 to 1.6 at H <= 128 in fp32 and fp16, where cuDNN has persistent kernels too.
#include "cuda/gru_plan.h"

#include <algorithm>
#include <limits>

namespace aten_ext {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// One step (GruRoute::Step, gru_cell). Weights that a step reads, without the 3 of the gates: H * (I + H);
// and products that it makes of them: rows of the batch times that. Measured on an H200, upstream -> ours in
// us.
//
// fp32 without TF32: rows share the reads of weights, the sums are each row's own. 4 rows at H = 2048 37 ->
// 29, 8 rows at H = 512 15 -> 9, but at H = 1024 13 -> 26; 9 rows 11 -> 12.
constexpr int64_t kFmaStepRows = 4;
constexpr int64_t kFmaStepRowsOfFewWeights = 8;
constexpr double kFewWeights = 0.6e6;
// 16 bits, on tensor cores: 8 rows of H = 512 10 -> 4.2, 64 rows 9 -> 6.2, 128 rows 12.6 -> 9.4; at H = 1024
// 16 rows about 8, 32 rows 10.5, 64 rows 10.8 -> 14.5.
constexpr double kStepProducts = 34e6;
constexpr double kStepProductsOfFewWeights = 68e6;
// A cell's upstream is faster than a layer's.
constexpr double kCellProducts = 34e6;
// TF32, where cuDNN was seen to use it too, by its error: with all batches of 24 rows and more, but of 8 to
// 16 rows not always (I = H = 256, 384 and 512). 64 rows of I = 640, H = 256 13.5 -> 7.8, of I = H = 512 12.7
// -> 10.3; 256 rows of H = 128 60 -> 4.3, of H = 256 12.5 -> 11.2; 32 rows of I = 1280, H = 512 15.1 -> 11.6,
// 48 rows 14.9 -> 14.6; 96 rows of H = 512 13.5 -> 15.8; at H = 1024 24 rows 16.4 -> 15.2, 32 rows 16.6
// -> 16.0, 48 rows 16.7 -> 27.6.
constexpr int64_t kTf32StepMultiple = 8;  // of batch, input and hidden: no others were measured
constexpr int64_t kTf32StepRows = 24;
constexpr int64_t kMostTf32StepRows = 256;
constexpr int64_t kTf32StepHidden = 128;  // at 64 cuDNN was half as far off: part of it is fp32
constexpr double kTf32StepProducts = 34e6;
constexpr double kTf32StepWeights = 1e6;
// Of more weights.
constexpr int64_t kMostTf32StepRowsOfManyWeights = 32;
constexpr double kMostTf32StepWeights = 2.2e6;
// As few rows as these, where the hidden size is not between.
constexpr int64_t kFewTf32StepRows = 16;
constexpr int64_t kFewTf32StepRowsHidden[2] = {128, 512};
// Steps up to which a launch for each, with its projection, is shorter than a GEMM and the recurrence's
// launch: about 20 us and 1.5 a step, against 4 to 8 a step.
constexpr int64_t kMostStepLaunches = 4;
constexpr double kStepsWeights = 4.3e6;      // 16 bits
constexpr double kFmaStepsProducts = 2.2e6;  // fp32
// Over the whole GPU, H up to 1024 and beyond: fewer steps do not make up for that beginning, of which
// loading W_hh into registers is the half. Two steps of 16 rows at H = 513 are 36 us upstream, of 4 rows at
// 1024 23.
constexpr int64_t kGridSteps[2] = {5, 10};

// A block alone: 3 * H * H weights are at most its registers. Small ones share an SM.
constexpr int64_t kBlockHidden = 128;
constexpr int64_t kSmallBlockHidden = 64;
constexpr int64_t kSmallBlocks = 3;
constexpr int64_t kWarpHidden = 32;  // a block of one warp
constexpr int64_t kWarpBlocks = 12;
// Clusters. In 16 bits up to 5 pairs of mma a thread and four warps (640 columns) stay in registers.
constexpr int64_t kClusterHidden = 256;  // of the smaller ones
constexpr int64_t kClusterOf16Hidden = 512;
constexpr int64_t kClusterOf16Hidden16Bits = 640;
// In TF32 a cluster of 16 hands round more bytes than pay: the whole GPU is faster, unless a cluster's rows
// are two tiles, multiplied at once, and the GPU's are more. H = 512, us a step, cluster -> GPU: 8 rows 1.88
// -> 1.07, 32 rows 2.07 -> 1.26, 64 rows 2.48 -> 1.94, 96 rows 2.86 -> 3.06, 128 rows 4.65 -> 3.5.
constexpr int64_t kTf32ClusterRows = 16;
// Over the whole GPU: blocks of 8 (fp32) or 16 units.
constexpr int64_t kGridFmaUnits = 8;
constexpr int64_t kGridUnits = 16;
constexpr int64_t kGridHidden = 2048;
constexpr int64_t kGridHiddenTf32 = 1024;
// fp32 beyond: not all of W_hh fits into the registers.
constexpr int64_t kGridFmaHidden = 1024;

// Rows of a group. Multiply-adds: each costs as much as the first, less the exchange. Tensor cores: 8 cost as
// much as one.
constexpr int kFmaRows = 16;
constexpr int kSmallFmaRows = 8;  // where blocks share an SM
constexpr int kMmaRows = 32;
constexpr int kMmaTile = 8;
// From how many rows of a group with multiply-adds tensor cores are faster: H up to 64, 128, 256, 512. In
// TF32, where it is allowed, that has to be worth the rounding.
constexpr int kMmaFromRows[4] = {4, 3, 2, 1};
constexpr int kTf32FromRows = 2;
constexpr int kGridTf32FromRows = 5;
// Where cuDNN multiplies the state in TF32, if it may: seen by its error at 13 hidden sizes from 64 to 1024,
// 17 batches from 2 to 128 and three input sizes. Not up to H = 192, where it has a kernel of its own; beyond
// not in batches of 5 to 16 rows (at H = 256 12 and 16, at 512 up to 12), and from H = 640 in all of two and
// more.
constexpr int64_t kTf32BeyondHidden = 192;
constexpr int64_t kTf32Batch = 20;
constexpr int64_t kTf32AnyBatchHidden = 640;
// Long sequences of few rows just above H = 64, fp32 and fp16: cuDNN's persistent kernel takes 0.49 us a
// step, six warps here 0.50 (at H = 64 0.48 and four warps 0.34; from 64 rows at H = 65 0.64).
constexpr int64_t kPersistentHidden = 96;
constexpr int64_t kPersistentRows = 16;
constexpr int64_t kPersistentSteps = 32;
// Over the whole GPU: rows of a group, H up to 1024 and beyond. us a step on an H200, upstream -> ours: 64
// rows (two groups) of H = 1024 7.6 -> 4.5 in 16 bits, 17.8 -> 6.0 in TF32; 16 rows of H = 2048 in 16
// bits 9.8 -> 4.7, 32 rows 9.7.
constexpr int64_t kGridRows[2][3] = {{32, 32, 32}, {3, 16, 0}};  // [H > 1024][fp32, 16 bits, TF32]

// FLOPs of a step's share of the projection, from which it is done in TF32 where that is allowed, as upstream
// does; a recurrence in TF32 always has it so. In fp32 (50 TFLOP/s) they are half a microsecond.
constexpr double kTf32ProjectionFlops = 25e6;
// And beyond which hidden sizes up to kClusterOf16Hidden have not been measured with it.
constexpr double kProjectionFlops = 150e6;

// ------------------------------------------------------------------------------------------------------

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

GruPlan upstream(const char* reason) {
  GruPlan plan{};
  plan.route = GruRoute::Upstream;
  plan.reason = reason;
  return plan;
}

// Groups of the batch so that all run at once if they can, each with as few rows as that allows. Tensor cores
// take 8 rows for the price of one, but gates and exchange do not.
int rows_of_group(const GruSizes& sizes, int64_t at_once) {
  const int64_t groups = std::max<int64_t>(1, at_once / sizes.directions);
  return static_cast<int>(divide_up(sizes.batch, groups));
}

// Index into kMmaFromRows.
int hidden_class(int64_t hidden) {
  return hidden <= kSmallBlockHidden ? 0 : hidden <= kBlockHidden ? 1 : hidden <= kClusterHidden ? 2 : 3;
}

// A cluster of 4 << kind blocks, or false if the device has none.
bool cluster(const GruSizes& sizes, const GruDevice& device, int kind, GruPlan& plan) {
  if (device.clusters[kind] == 0) {
    return false;
  }
  plan.exchange = GruExchange::Cluster;
  plan.blocks = 4 << kind;
  plan.rows = rows_of_group(sizes, device.clusters[kind]);
  return true;
}

bool block(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  plan.exchange = GruExchange::Block;
  plan.blocks = 1;
  plan.rows =
      rows_of_group(sizes, device.multiprocessors * (sizes.hidden <= kWarpHidden         ? kWarpBlocks
                                                     : sizes.hidden <= kSmallBlockHidden ? kSmallBlocks
                                                                                         : 1));
  return true;
}

bool grid(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  if (sizes.hidden > (plan.math == GruMath::MmaTf32 ? kGridHiddenTf32 : kGridHidden)) {
    return false;
  }
  // fp32 spreads over all of the GPU; tensor cores want tiles of 16 units, and fewer blocks read the state
  // less often.
  const int64_t of_direction = device.multiprocessors / sizes.directions;
  int64_t units = kGridUnits;
  if (plan.math == GruMath::Fma && sizes.hidden > kGridFmaHidden) {
    units = std::max<int64_t>(2, divide_up(divide_up(sizes.hidden, of_direction), 2) * 2);
  } else if (plan.math == GruMath::Fma && divide_up(sizes.hidden, kGridFmaUnits) <= of_direction) {
    units = kGridFmaUnits;
  }
  const int64_t blocks = divide_up(sizes.hidden, units);
  if (units > kGridUnits || blocks > of_direction) {
    return false;
  }
  plan.exchange = GruExchange::Grid;
  plan.blocks = static_cast<int>(blocks);
  // In groups, if the GPU has room for several: a block then reads fewer rows of the state.
  plan.rows = plan.math == GruMath::Fma ? static_cast<int>(sizes.batch)
                                        : rows_of_group(sizes, device.multiprocessors / blocks);
  return true;
}

// Up to H = 512, 640 in 16 bits, where there are kernels for that.
bool small_state(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  const int64_t hidden = sizes.hidden;
  const bool fma = plan.math == GruMath::Fma;
  if (hidden <= kBlockHidden) {
    return block(sizes, device, plan);
  }
  if (hidden <= kClusterHidden) {
    if (!cluster(sizes, device, 1, plan)) {
      return false;
    }
    // Twice the groups, where that leaves one tile of rows and not two.
    if (!fma && plan.rows > kMmaTile) {
      (void)cluster(sizes, device, 0, plan);
    }
    return true;
  }
  if (hidden > (plan.math == GruMath::Mma ? kClusterOf16Hidden16Bits : kClusterOf16Hidden)) {
    return false;
  }
  const bool sixteen = cluster(sizes, device, 2, plan);
  if (GruPlan over_gpu = plan;
      plan.math == GruMath::MmaTf32 && sizes.steps >= kGridSteps[0] && grid(sizes, device, over_gpu) &&
      over_gpu.rows <= kMmaRows &&
      (!sixteen || over_gpu.rows <= kTf32ClusterRows || plan.rows > kTf32ClusterRows)) {
    plan = over_gpu;
    return true;
  }
  if (plan.math == GruMath::Mma && hidden <= kClusterOf16Hidden && (!sixteen || plan.rows > kMmaTile)) {
    return cluster(sizes, device, 1, plan);
  }
  return sixteen;
}

const char* plan_recurrence(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  const bool found = small_state(sizes, device, plan) || grid(sizes, device, plan);
  if (!found) {
    return "hidden size without a kernel";
  }
  const int64_t most = plan.exchange == GruExchange::Grid
                           ? kGridRows[sizes.hidden > 1024][static_cast<int>(plan.math)]
                       : plan.math != GruMath::Fma         ? kMmaRows
                       : sizes.hidden <= kSmallBlockHidden ? kSmallFmaRows
                                                           : kFmaRows;
  if (plan.exchange == GruExchange::Grid && sizes.steps < kGridSteps[sizes.hidden > 1024]) {
    return "few steps of a large layer";
  }
  return plan.rows <= most ? nullptr : "batch too large for the hidden size";
}

// Whether the recurrence may be in TF32 without being less accurate than upstream's.
bool is_tf32_recurrence(const GruSizes& sizes) {
  return sizes.tf32_allowed && sizes.hidden > kTf32BeyondHidden &&
         (sizes.batch >= kTf32Batch || sizes.hidden >= kTf32AnyBatchHidden);
}

bool is_small_fma_step(int64_t batch, double weights) {
  return batch <= kFmaStepRows || (batch <= kFmaStepRowsOfFewWeights && weights <= kFewWeights);
}

// Whether one step in fp32 gains in TF32 by being one launch, and cuDNN takes TF32 for it.
bool is_tf32_step(const GruSizes& sizes, double weights) {
  const bool many_weights = weights > kTf32StepWeights;
  const bool few_rows =
      sizes.batch == kFewTf32StepRows && !many_weights &&
      (sizes.hidden <= kFewTf32StepRowsHidden[0] || sizes.hidden >= kFewTf32StepRowsHidden[1]);
  const bool whole = sizes.batch % kTf32StepMultiple == 0 && sizes.hidden % kTf32StepMultiple == 0 &&
                     sizes.input % kTf32StepMultiple == 0;
  if (!sizes.tf32_allowed || !whole || sizes.hidden < kTf32StepHidden ||
      !(few_rows || sizes.batch >= kTf32StepRows)) {
    return false;
  }
  return many_weights ? sizes.batch <= kMostTf32StepRowsOfManyWeights && weights <= kMostTf32StepWeights
                      : sizes.batch <= kMostTf32StepRows &&
                            static_cast<double>(sizes.batch) * weights <= kTf32StepProducts;
}

// A launch for each step.
bool plan_steps(const GruSizes& sizes, GruPlan& plan) {
  const double weights = static_cast<double>(sizes.hidden) * static_cast<double>(sizes.input + sizes.hidden);
  const double products = static_cast<double>(sizes.batch) * weights;
  const bool one = sizes.steps == 1;
  plan.route = GruRoute::Step;
  if (sizes.sixteen_bits) {
    return one ? products <= (weights <= kFewWeights ? kStepProductsOfFewWeights : kStepProducts)
               : products <= kStepProducts && weights <= kStepsWeights;
  }
  if (is_small_fma_step(sizes.batch, weights)) {
    return one || products <= kFmaStepsProducts;
  }
  plan.tf32 = true;
  return one && is_tf32_step(sizes, weights);
}

}  // namespace

bool is_small_cell(bool sixteen_bits, int64_t batch, int64_t input, int64_t hidden) {
  const double weights = static_cast<double>(hidden) * static_cast<double>(input + hidden);
  return sixteen_bits ? static_cast<double>(batch) * weights <= kCellProducts
                      : is_small_fma_step(batch, weights);
}

GruPlan plan_gru(const GruSizes& given, const GruDevice& device) {
  GruSizes sizes = given;
  // cuDNN's TF32 wants whole vectors of four; the rest it multiplies in fp32, so that TF32 would be far less
  // accurate than upstream is.
  sizes.tf32_allowed = given.tf32_allowed && given.hidden % 4 == 0 && given.input % 4 == 0;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (sizes.steps > kMost / 256 || sizes.batch > kMost / 256 || sizes.hidden > kMost / 256 ||
      sizes.input > kMost / 256 || sizes.steps * sizes.batch > kMost) {
    return upstream("sizes beyond 32 bits");
  }
  if (device.compute_major < 8) {
    return upstream("GPU, or code built for it, older than sm_80");
  }
  GruPlan plan{};
  if (sizes.steps <= kMostStepLaunches && plan_steps(sizes, plan)) {
    return plan;
  }
  if (sizes.steps == 1) {
    return upstream("one step of a large batch");
  }
  if (!sizes.bfloat16 && sizes.hidden > kSmallBlockHidden && sizes.hidden <= kPersistentHidden &&
      sizes.batch * sizes.directions <= kPersistentRows && sizes.steps > kPersistentSteps) {
    return upstream("long sequence of a layer that cuDNN keeps on the chip");
  }
  plan = {};
  plan.route = GruRoute::Recurrence;
  plan.math = GruMath::Fma;
  const char* reason = plan_recurrence(sizes, device, plan);
  const bool on_grid = plan.exchange == GruExchange::Grid;
  // 16 bits: over the whole GPU there are tensor cores alone.
  const bool must = sizes.sixteen_bits && (reason != nullptr || on_grid);
  const int from = sizes.sixteen_bits ? kMmaFromRows[hidden_class(sizes.hidden)]
                   : on_grid          ? kGridTf32FromRows
                                      : kTf32FromRows;
  const bool may = sizes.sixteen_bits || is_tf32_recurrence(sizes);
  if (must || (may && (reason != nullptr || plan.rows >= from))) {
    GruPlan with_mma = plan;
    with_mma.math = sizes.sixteen_bits ? GruMath::Mma : GruMath::MmaTf32;
    const char* const reason_of_mma = plan_recurrence(sizes, device, with_mma);
    if (must || reason_of_mma == nullptr) {  // fp32 keeps what it has if TF32 has nothing
      plan = with_mma;
      reason = reason_of_mma;
    }
  }
  if (reason != nullptr) {
    return upstream(reason);
  }
  if (!sizes.sixteen_bits && sizes.tf32_allowed) {
    const double projection = 6.0 * sizes.batch * sizes.hidden * sizes.input * sizes.directions;
    if (sizes.hidden <= kClusterOf16Hidden && projection > kProjectionFlops) {
      return upstream("large projection that upstream may do in TF32");
    }
    plan.tf32 = plan.math == GruMath::MmaTf32 || projection > kTf32ProjectionFlops;
  }
  return plan;
}

}  // namespace aten_ext
