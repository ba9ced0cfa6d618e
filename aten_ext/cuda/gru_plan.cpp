// The policy of the GRU kernels. Every number here follows from the budgets in cuda/device/gru_*.cuh and from
// what upstream takes on an H200 (about 6 us a step, 4.8 to 6.1 for small batches; 1.6 at H <= 192 in fp32).
// None has been tuned on hardware yet, which is why the override starts off.
#include "cuda/gru_plan.h"

#include <algorithm>
#include <limits>

namespace aten_ext {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// One step: each warp has a hidden unit and reads its weights once, for so many rows. More rows read them
// again from the L1 and the inputs from the L2, and a GEMM has the tensor cores.
constexpr int64_t kStepRows = 8;
// Two GEMMs and a launch for the gates are what upstream does too, with more launches around: they cease to
// matter.
constexpr int64_t kStepGemmRows = 128;

// A block alone: 3 * H * H weights are half of its registers.
constexpr int64_t kBlockHidden = 128;
constexpr int64_t kBlockHiddenTf32 = 64;
// Clusters of 8 and of 16 blocks. In 16 bits up to 20 pairs of mma a thread (640 columns) stay in registers.
constexpr int64_t kClusterOf2Hidden = 128;  // TF32 only
constexpr int64_t kClusterOf8Hidden = 256;
constexpr int64_t kClusterOf16Hidden = 512;
constexpr int64_t kClusterOf16Hidden16Bits = 640;
// Blocks of 16 units over the whole GPU.
constexpr int64_t kGridUnits = 16;
constexpr int64_t kGridHidden = 2048;
constexpr int64_t kGridHiddenTf32 = 1024;

// Rows of a group. fp32: a row costs 3 * H * H / blocks FMAs of 128 a cycle, 0.22 us with H = 512 in 16
// blocks, against 6 us or more of upstream's step. Tensor cores: 8 rows cost 0.35 us.
constexpr int kFmaRows = 16;
constexpr int kMmaRows = 32;
// fp32 at which TF32 is worth its rounding, where it is allowed: fewer rows are as fast without.
constexpr int kTf32FromRows = 5;
// Over the whole GPU, with one barrier of 1 us and a pass of the state through the L2 in each step. H up to
// 1024 and beyond.
constexpr int64_t kGridRows[2][3] = {{32, 64, 32}, {3, 16, 0}};  // [H > 1024][fp32, 16 bits, TF32]

// fp32: the projection is done in fp32 (50 TFLOP/s), which upstream may do in TF32. A step's share of that,
// in FLOPs, beyond which it eats what the recurrence gains (3 us at 50 TFLOP/s).
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

bool block_or_cluster(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  const bool tf32 = plan.math == GruMath::MmaTf32;
  const int64_t hidden = sizes.hidden;
  if (hidden <= (tf32 ? kBlockHiddenTf32 : kBlockHidden)) {
    plan.exchange = GruExchange::Block;
    plan.blocks = 1;
    plan.rows = rows_of_group(sizes, device.multiprocessors);
    return true;
  }
  const int64_t most = plan.math == GruMath::Mma ? kClusterOf16Hidden16Bits : kClusterOf16Hidden;
  // Index into GruDevice::clusters.
  const int kind = tf32 && hidden <= kClusterOf2Hidden ? 0
                   : hidden <= kClusterOf8Hidden       ? 2
                   : hidden <= most                    ? 3
                                                       : -1;
  if (kind < 0 || device.clusters[kind] == 0) {
    return false;
  }
  plan.exchange = GruExchange::Cluster;
  plan.blocks = 2 << kind;
  plan.rows = rows_of_group(sizes, device.clusters[kind]);
  return true;
}

bool grid(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  if (sizes.hidden > (plan.math == GruMath::MmaTf32 ? kGridHiddenTf32 : kGridHidden)) {
    return false;
  }
  // fp32 spreads over all of the GPU; tensor cores want tiles of 16 units, and fewer blocks read the state
  // less often.
  const int64_t of_direction = device.multiprocessors / sizes.directions;
  const int64_t units = plan.math == GruMath::Fma
                            ? std::max<int64_t>(2, divide_up(divide_up(sizes.hidden, of_direction), 2) * 2)
                            : kGridUnits;
  const int64_t blocks = divide_up(sizes.hidden, units);
  if (units > kGridUnits || blocks > of_direction) {
    return false;
  }
  plan.exchange = GruExchange::Grid;
  plan.blocks = static_cast<int>(blocks);
  plan.rows = static_cast<int>(sizes.batch);
  return true;
}

const char* plan_recurrence(const GruSizes& sizes, const GruDevice& device, GruPlan& plan) {
  const bool found = block_or_cluster(sizes, device, plan) || grid(sizes, device, plan);
  if (!found) {
    return "hidden size without a kernel";
  }
  const int64_t most = plan.exchange == GruExchange::Grid
                           ? kGridRows[sizes.hidden > 1024][static_cast<int>(plan.math)]
                           : (plan.math == GruMath::Fma ? kFmaRows : kMmaRows);
  return plan.rows <= most ? nullptr : "batch too large for the hidden size";
}

}  // namespace

bool is_small_step(int64_t batch) {
  return batch <= kStepRows;
}

GruPlan plan_gru(const GruSizes& sizes, const GruDevice& device) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (sizes.steps > kMost / 256 || sizes.batch > kMost / 256 || sizes.hidden > kMost / 256 ||
      sizes.input > kMost / 256 || sizes.steps * sizes.batch > kMost) {
    return upstream("sizes beyond 32 bits");
  }
  if (device.compute_major < 8) {
    return upstream("GPU before sm_80");
  }
  GruPlan plan{};
  if (sizes.steps == 1) {
    if (sizes.batch > kStepGemmRows) {
      return upstream("one step of a large batch");
    }
    plan.route = is_small_step(sizes.batch) ? GruRoute::Step : GruRoute::StepGemm;
    return plan;
  }
  if (!sizes.sixteen_bits && sizes.tf32_allowed &&
      6.0 * sizes.batch * sizes.hidden * sizes.input * sizes.directions > kProjectionFlops) {
    return upstream("large projection that upstream may do in TF32");
  }
  plan.route = GruRoute::Recurrence;
  plan.math = sizes.sixteen_bits ? GruMath::Mma : GruMath::Fma;
  const char* reason = plan_recurrence(sizes, device, plan);
  // Several rows in a group: try TF32, and keep fp32 if that has a kernel and TF32 has not.
  if (!sizes.sixteen_bits && sizes.tf32_allowed && (reason != nullptr || plan.rows >= kTf32FromRows)) {
    GruPlan with_tf32 = plan;
    with_tf32.math = GruMath::MmaTf32;
    if (plan_recurrence(sizes, device, with_tf32) == nullptr) {
      plan = with_tf32;
      reason = nullptr;
    }
  }
  return reason == nullptr ? plan : upstream(reason);
}

}  // namespace aten_ext
