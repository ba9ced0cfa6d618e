// The policy: which route and which blocks a layer takes. Measured on an H200; the figures behind each
// constant are in docs/kernels/rnn.md.
#include "ops/rnn/plan.h"

#include <algorithm>
#include <limits>

#include "core/gpu.h"
#include "core/math.h"
#include "ops/rnn/few_products.h"
#include "ops/rnn/few_steps_facts.h"
#include "ops/rnn/groups.h"
#include "ops/rnn/launch_bound.h"
#include "ops/rnn/sizes.h"
#include "ops/rnn/stack_facts.h"
#include "ops/rnn/training/upstream_facts.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Over the whole GPU, H up to 1024 and beyond: fewer steps do not make up for loading W_hh into registers.
constexpr int64_t kGridSteps[2] = {5, 10};

// A block alone: kGates * H * H weights are at most its registers, or a cluster of two has them. Small ones
// share an SM.
constexpr int64_t kSmallBlockHidden = 64;
constexpr int64_t kSmallBlocks = 3;
constexpr int64_t kWarpHidden = 32;  // a block of one warp
constexpr int64_t kWarpBlocks = 12;
// Clusters. In 16 bits up to 5 pairs of mma a thread and four warps (640 columns) stay in registers.
constexpr int64_t kClusterHidden = 256;  // of the smaller ones
// There, in fp32, by cell (GRU, RNN): rows of a group up to which a cluster of four is faster than one of
// eight with more. An LSTM's weights do not fit into four.
constexpr int kRowsOfFour[2] = {1, 16};
constexpr int64_t kClusterOf16Hidden = 512;
constexpr int64_t kClusterOf16Hidden16Bits = 640;
// In TF32 a cluster of 16 hands round more bytes than pay: the whole GPU is faster, unless a cluster's rows
// are two tiles, multiplied at once, and the GPU's are more.
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
// Of a cluster of 16: where the same rows over the whole GPU are more.
constexpr int kClusterTiles = 2;
// From how many rows of a group with multiply-adds tensor cores are faster: H up to 64, 128, 256, 512. In
// TF32, where it is allowed, that has to be worth the rounding.
constexpr int kMmaFromRows[4] = {4, 3, 2, 1};
constexpr int kTf32FromRows = 2;
constexpr int kGridTf32FromRows = 5;
constexpr int kLstmGridTf32FromRows = 2;  // of its rows fewer share a read of the state
// Over the whole GPU: rows of a group, H up to 1024 and beyond.
constexpr int64_t kGridRows[2][3] = {{32, 32, 32}, {3, 16, 0}};  // [H > 1024][by Math]
// With multiply-adds over the whole GPU, by cell: where upstream may take TF32 for the state, but ours may
// not because of the input's size, and elsewhere. And without gradients, where a block of a GRU has more
// units than kGridFmaUnits.
struct GridFmaRows {
  int64_t beside_tf32, others;
};
constexpr GridFmaRows kGridFmaRows[] = {{12, 12}, {12, 12}, {12, 16}, {12, 32}};
constexpr int64_t kGridFmaRowsOfManyUnits = 6;
// Rows that a few steps in fp32 of an LSTM or RNN may have beyond a hidden size.
constexpr int64_t kFewStepsHidden = 384;
constexpr int64_t kFewStepsRows = 64;

// Up to so many steps (fp32, fp16, bf16; inference and training) padding a packed sequence, and packing it
// again, takes more of the GPU's time than upstream's few launches.
constexpr int64_t kFewPackedSteps[3][2] = {{3, 4}, {3, 7}, {2, 7}};

// Padded rows of a packed sequence, for each that exists: of more, the kernels' time goes to rows that have
// ended.
constexpr int64_t kMostPadding = 32;

// Chunks of a long sequence: bytes of projections that are worth another launch, and the steps that make its
// beginning (6 us in a cluster, 15 over the whole GPU, and that of a GEMM) about one percent.
constexpr int64_t kChunkBytes = int64_t{256} << 20;
constexpr int64_t kChunkSteps = 640;
constexpr int64_t kGridChunkSteps = 320;

// FLOPs of a step's share of the projection, from which it is done in TF32 even where upstream was seen to do
// some in fp32. In fp32 (50 TFLOP/s) they are half a microsecond.
constexpr double kTf32ProjectionFlops = 25e6;
// Fewer columns than these are as long a product.
constexpr int64_t kProjectionColumns = 128;

// ------------------------------------------------------------------------------------------------------

// Groups of the batch so that all run at once if they can, each with as few rows as that allows. Tensor cores
// take 8 rows for the price of one, but gates and exchange do not.
int rows_of_group(const Sizes& sizes, int64_t at_once) {
  const int64_t groups = std::max<int64_t>(1, at_once / sizes.directions);
  return static_cast<int>(ceil_div(sizes.batch, groups));
}

// Index into kMmaFromRows.
int hidden_class(int64_t hidden) {
  return hidden <= kSmallBlockHidden ? 0 : hidden <= kBlockHidden ? 1 : hidden <= kClusterHidden ? 2 : 3;
}

// Whether so many blocks take the cell's hidden size, each a row.
bool has_kernel(const Sizes& sizes, Math math, Exchange exchange, int blocks) {
  Recurrence r{};
  r.math = math;
  r.exchange = exchange;
  r.blocks = blocks;
  r.rows = 1;
  return choose_kernel(sizes.problem, r);
}

// A cluster of 1 << log2 blocks, or false if the GPU has none or the cell's weights need more.
bool cluster(const Sizes& sizes, const Gpu& gpu, int log2, Recurrence& r) {
  if (gpu.clusters[log2] == 0 || !has_kernel(sizes, r.math, Exchange::Cluster, 1 << log2)) {
    return false;
  }
  r.exchange = Exchange::Cluster;
  r.blocks = 1 << log2;
  r.rows = rows_of_group(sizes, gpu.clusters[log2]);
  return true;
}

bool block(const Sizes& sizes, const Gpu& gpu, Recurrence& r) {
  const int64_t of_multiprocessor = sizes.hidden <= kWarpHidden         ? kWarpBlocks
                                    : sizes.hidden <= kSmallBlockHidden ? kSmallBlocks
                                                                        : 1;
  if (!has_kernel(sizes, r.math, Exchange::Block, 1)) {
    return false;
  }
  r.exchange = Exchange::Block;
  r.blocks = 1;
  r.rows = rows_of_group(sizes, gpu.multiprocessors * of_multiprocessor);
  return true;
}

bool grid(const Sizes& sizes, const Gpu& gpu, Recurrence& r) {
  if (sizes.hidden > (r.math == Math::MmaTf32 ? kGridHiddenTf32 : kGridHidden)) {
    return false;
  }
  // fp32 spreads over all of the GPU; tensor cores want tiles of 16 units, and fewer blocks read the state
  // less often.
  const int64_t of_direction = gpu.multiprocessors / sizes.directions;
  if (of_direction < 1) {
    return false;
  }
  int64_t units = kGridUnits;
  if (r.math == Math::Fma && sizes.hidden > kGridFmaHidden) {
    units = std::max<int64_t>(2, round_up(ceil_div(sizes.hidden, of_direction), int64_t{2}));
  } else if (r.math == Math::Fma && ceil_div(sizes.hidden, kGridFmaUnits) <= of_direction) {
    units = kGridFmaUnits;
  }
  const int64_t blocks = ceil_div(sizes.hidden, units);
  if (units > kGridUnits || blocks > of_direction ||
      !has_kernel(sizes, r.math, Exchange::Grid, static_cast<int>(blocks))) {
    return false;
  }
  r.exchange = Exchange::Grid;
  r.blocks = static_cast<int>(blocks);
  // In groups, if the GPU has room for several: a block then reads fewer rows of the state.
  r.rows = rows_of_group(sizes, gpu.multiprocessors / blocks);
  return true;
}

// Whether a cluster, whose blocks wait for less than those all over the GPU but take less rows at once, is
// shorter: where that is two tiles of rows against three or more, or where they cannot take theirs at all.
bool is_better_than_grid(const Sizes& sizes, const Gpu& gpu, const Recurrence& in_cluster) {
  Recurrence over_gpu = in_cluster;
  const int64_t tiles = ceil_div(in_cluster.rows, kMmaTile);
  if (!grid(sizes, gpu, over_gpu) || over_gpu.rows > kGridRows[0][static_cast<int>(Math::Mma)]) {
    return true;
  }
  return tiles <= kClusterTiles && tiles < ceil_div(over_gpu.rows, kMmaTile);
}

// Twice the groups in clusters of four, where they have fewer rows than `of_eight` and that pays.
void take_cluster_of_four(const Sizes& sizes, const Gpu& gpu, Recurrence& of_eight) {
  Recurrence of_four = of_eight;
  const int most = kRowsOfFour[sizes.problem.cell != Cell::Gru];
  if (!is_tf32_recurrence(sizes) && cluster(sizes, gpu, 2, of_four) && of_four.rows < of_eight.rows &&
      of_four.rows <= most) {
    of_eight = of_four;
  }
}

// Up to H = 512, 640 in 16 bits, where there are kernels for that.
bool small_state(const Sizes& sizes, const Gpu& gpu, Recurrence& r) {
  const int64_t hidden = sizes.hidden;
  const bool is_fma = r.math == Math::Fma;
  if (hidden <= kBlockHidden) {
    return block(sizes, gpu, r) || cluster(sizes, gpu, 1, r);
  }
  if (hidden <= kClusterHidden) {
    if (!cluster(sizes, gpu, 3, r)) {
      return false;
    }
    if (is_fma) {
      take_cluster_of_four(sizes, gpu, r);
    } else if (r.rows > kMmaTile) {  // one tile of rows and not two
      (void)cluster(sizes, gpu, 2, r);
    }
    return true;
  }
  if (hidden > (r.math == Math::Mma ? kClusterOf16Hidden16Bits : kClusterOf16Hidden)) {
    return false;
  }
  const bool sixteen = cluster(sizes, gpu, 4, r);
  if (Recurrence over_gpu = r; r.math == Math::MmaTf32 && sizes.steps >= kGridSteps[0] &&
                               grid(sizes, gpu, over_gpu) && over_gpu.rows <= kMmaRows &&
                               (!sixteen || over_gpu.rows <= kTf32ClusterRows || r.rows > kTf32ClusterRows)) {
    r = over_gpu;
    return true;
  }
  if (r.math != Math::Mma || hidden > kClusterOf16Hidden || (sixteen && r.rows <= kMmaTile)) {
    return sixteen;
  }
  if (Recurrence of_eight = r; cluster(sizes, gpu, 3, of_eight)) {
    r = of_eight;
    return true;
  }
  return sixteen && is_better_than_grid(sizes, gpu, r);
}

// Of a group whose state is in so many blocks all over the GPU.
int64_t most_rows_of_grid_fma(const Sizes& sizes, int blocks) {
  const RnnProblem& problem = sizes.problem;
  const GridFmaRows& most = kGridFmaRows[static_cast<int>(problem.cell)];
  // With gradients a GRU's backward gains more than its forward loses.
  if (problem.cell == Cell::Gru && problem.differentiated) {
    return most.others;
  }
  if (problem.cell == Cell::Gru && ceil_div(sizes.hidden, int64_t{blocks}) > kGridFmaUnits) {
    return kGridFmaRowsOfManyUnits;
  }
  const bool beside_tf32 = problem.tf32_allowed && !sizes.tf32_allowed;
  return beside_tf32 ? most.beside_tf32 : most.others;
}

const char* plan_recurrence(const Sizes& sizes, const Gpu& gpu, Recurrence& r) {
  const bool found = small_state(sizes, gpu, r) || grid(sizes, gpu, r);
  if (!found) {
    return "hidden size without a kernel";
  }
  int64_t most = r.exchange == Exchange::Grid
                     ? kGridRows[sizes.hidden > kGridFmaHidden][static_cast<int>(r.math)]
                 : r.math != Math::Fma               ? kMmaRows
                 : sizes.hidden <= kSmallBlockHidden ? kSmallFmaRows
                                                     : kFmaRows;
  const Cell cell = sizes.problem.cell;
  if (r.math == Math::Fma && r.exchange == Exchange::Grid) {
    most = std::min(most, most_rows_of_grid_fma(sizes, r.blocks));
  }
  if (r.exchange == Exchange::Grid && sizes.steps < kGridSteps[sizes.hidden > kGridFmaHidden]) {
    return "few steps of a large layer";
  }
  if (cell != Cell::Gru && !sizes.sixteen_bits && sizes.steps < kGridSteps[0] &&
      sizes.hidden > kFewStepsHidden && sizes.batch > kFewStepsRows) {
    return "few steps of a large layer";
  }
  return r.rows <= most ? nullptr : "batch too large for the hidden size";
}

// Math and blocks of a recurrence, or the reason why there is none.
const char* choose_recurrence(const Sizes& sizes, const Gpu& gpu, Recurrence& r) {
  r.math = Math::Fma;
  const char* const reason = plan_recurrence(sizes, gpu, r);
  const bool on_grid = r.exchange == Exchange::Grid;
  // 16 bits: over the whole GPU there are tensor cores alone.
  const bool must = sizes.sixteen_bits && (reason != nullptr || on_grid);
  const int from = sizes.sixteen_bits                 ? kMmaFromRows[hidden_class(sizes.hidden)]
                   : !on_grid                         ? kTf32FromRows
                   : sizes.problem.cell == Cell::Lstm ? kLstmGridTf32FromRows
                                                      : kGridTf32FromRows;
  const bool may = sizes.sixteen_bits || is_tf32_recurrence(sizes);
  if (!must && !(may && (reason != nullptr || r.rows >= from))) {
    return reason;
  }
  Recurrence with_mma = r;
  with_mma.math = sizes.sixteen_bits ? Math::Mma : Math::MmaTf32;
  const char* const reason_of_mma = plan_recurrence(sizes, gpu, with_mma);
  if (must || reason_of_mma == nullptr) {  // fp32 keeps what it has if TF32 has nothing
    r = with_mma;
    return reason_of_mma;
  }
  return reason;
}

// Whether the input of a layer of so many features is multiplied by the kernel of few rows.
bool has_few_rows(const Sizes& sizes, int64_t features) {
  const auto weights = static_cast<double>(sizes.problem.gates() * sizes.hidden * features);
  return !sizes.sixteen_bits && is_few_rows_projection(sizes.steps * sizes.batch, weights);
}

// Whether a library's product of it is in TF32.
bool is_tf32_projection(const Sizes& sizes, const Recurrence& r, int64_t features) {
  const RnnProblem& problem = sizes.problem;
  const double gates = static_cast<double>(problem.gates() * sizes.hidden);
  if (!problem.tf32_allowed || sizes.sixteen_bits) {
    return false;
  }
  const bool vectors = sizes.tf32_allowed && features % kTf32Vector == 0;
  const int64_t rows = problem.sequence.rows();
  if (!problem.train && !problem.given_packed &&
      has_tf32_projection_in_inference(problem.cell, problem.layers, sizes.hidden, features, rows, vectors)) {
    return true;
  }
  if (!vectors) {
    return r.math == Math::MmaTf32 && is_beyond(kTf32ProjectionBesideState, features, rows);
  }
  const double flops = 2.0 * gates * static_cast<double>(sizes.batch * features * sizes.directions);
  const double in_time = flops * std::max(1.0, static_cast<double>(kProjectionColumns) / gates);
  return r.math == Math::MmaTf32 ||
         has_tf32_projection(problem.cell, problem.layers, sizes.hidden, features, rows) ||
         in_time > kTf32ProjectionFlops;
}

void take_steps(const Sizes& sizes, bool tf32, const Gpu& gpu, RnnPlan& plan) {
  const int64_t features[2] = {plan.problem.sequence.features, sizes.hidden * sizes.directions};
  plan.route = Route::Step;
  plan.recurrence = {};  // one may have been tried
  for (int i = 0; i < 2; ++i) {
    plan.step[i] = cell_kernel(plan.problem.cell, plan.problem.dtype, tf32, sizes.batch, features[i],
                               sizes.hidden, sizes.directions, gpu.multiprocessors);
  }
}

// Or the reason why there is none.
const char* take_recurrence(const Sizes& sizes, const Gpu& gpu, RnnPlan& plan) {
  plan.route = Route::Recurrence;
  if (const char* reason = choose_recurrence(sizes, gpu, plan.recurrence)) {
    return reason;
  }
  const int64_t features[2] = {plan.problem.sequence.features, sizes.hidden * sizes.directions};
  for (int i = 0; i < 2; ++i) {
    const bool few = has_few_rows(sizes, features[i]);
    plan.projection[i] = few                                                       ? Projection::FewRows
                         : is_tf32_projection(sizes, plan.recurrence, features[i]) ? Projection::Tf32
                                                                                   : Projection::Library;
  }
  plan.chunk = choose_chunk(plan.problem, plan.recurrence);
  return choose_kernel(plan.problem, plan.recurrence) ? nullptr : "hidden size without a kernel";
}

constexpr const char* kLargeLayer = "large layer that upstream runs in less time";

const char* choose_route(const Sizes& sizes, const Gpu& gpu, RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  // Upstream takes none of its persistent kernels for a packed sequence, and the kernels of one step do not
  // hold a cell state.
  const bool packed = problem.sequence.is_packed();
  // What upstream was seen to run in less of the GPU's time is ours still where its launches take longer.
  const bool by_gpu = !is_launch_bound(problem, gpu);
  const int kind = problem.dtype == Dtype::Float ? 0 : problem.dtype == Dtype::Half ? 1 : 2;
  const int64_t few = kFewPackedSteps[kind][problem.train];
  if (by_gpu && packed && sizes.steps <= few) {
    return "packed sequence of few steps";
  }
  if (by_gpu && is_kept_packed(problem)) {
    return "packed sequence that upstream runs in less time";
  }
  if (by_gpu && !problem.is_step_by_step() && is_kept_for_few_steps(problem)) {
    return "layer that cuDNN keeps on the chip";
  }
  if (by_gpu && is_kept_without_gradients(problem)) {
    return "few steps that upstream runs in less time";
  }
  if (is_kept_in_graphs(problem)) {
    return kLargeLayer;
  }
  bool tf32 = false;
  const bool steps = !packed && plan_steps(sizes, tf32);
  if (steps && !is_shorter_in_one_launch(problem)) {
    take_steps(sizes, tf32, gpu, plan);
    return nullptr;
  }
  if (!packed && sizes.steps == 1 && !has_long_first_step(problem)) {
    return "one step of a large batch";
  }
  // The kernel of few rows is in fp32 on its own account.
  const bool narrow = has_narrow_projection(problem) && !has_few_rows(sizes, problem.sequence.features);
  if (by_gpu && !problem.train && !problem.given_packed && narrow) {
    return "products that upstream makes in TF32, or in less time";
  }
  const bool on_chip = by_gpu && !problem.given_packed &&
                       (is_static(problem) || (!is_judged_in_training(problem) && is_kept_on_chip(problem)));
  const char* const reason = !on_chip ? take_recurrence(sizes, gpu, plan)
                             : problem.cell == Cell::Gru
                                 ? "long sequence of a layer that cuDNN keeps on the chip"
                                 : "layer that cuDNN keeps on the chip";
  // Steps are shorter than what cuDNN keeps on the chip too, but for an LSTM's of one direction.
  if (reason != nullptr && steps && !(on_chip && problem.cell == Cell::Lstm && sizes.directions == 1)) {
    take_steps(sizes, tf32, gpu, plan);
    return nullptr;
  }
  return reason == nullptr && by_gpu && is_kept_stack(plan) ? kLargeLayer : reason;
}

}  // namespace

int64_t choose_chunk(const RnnProblem& problem, const Recurrence& recurrence) {
  const Sequence& sequence = problem.sequence;
  const int64_t step_bytes =
      sequence.batch * problem.gates() * problem.hidden * problem.directions * int64_t{sizeof(float)};
  const int64_t fewest = recurrence.exchange == Exchange::Grid ? kGridChunkSteps : kChunkSteps;
  const int64_t wanted = ceil_div(sequence.steps * step_bytes, kChunkBytes);
  return ceil_div(sequence.steps, std::max<int64_t>(1, std::min(wanted, sequence.steps / fewest)));
}

std::vector<Piece> pieces_of_forward(const RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  return !problem.sequence.is_packed() ? chunks_of(problem.sequence, plan.chunk)
         : plan.saves                  ? cut(pieces_of(problem, true), plan.chunk)
                                       : cut(pieces_of_forward_alone(problem), plan.chunk);
}

const char* decline_padding(const RnnPlan& plan) {
  return rows_of(plan.pieces) > kMostPadding * plan.problem.sequence.rows()
             ? "packed sequence of one long row and many short ones"
             : nullptr;
}

Recurrence of_fewer_rows(const RnnProblem& problem, const Recurrence& recurrence, int64_t batch) {
  if (batch == problem.sequence.batch) {
    return recurrence;
  }
  RnnProblem fewer = problem;
  fewer.sequence.batch = batch;
  Recurrence r = recurrence;
  if (r.math == Math::Fma) {
    r.rows = rows_in_as_many_groups(problem.sequence.batch, recurrence.rows, batch);
    if (choose_kernel(fewer, r)) {
      return r;
    }
    r = recurrence;
  }
  (void)choose_kernel(fewer, r);  // it took more of such groups
  return r;
}

Choice<RnnPlan> plan_rnn(const RnnProblem& problem, const Gpu& gpu) {
  const Sequence& sequence = problem.sequence;
  const bool tf32_allowed =
      problem.tf32_allowed && problem.dtype == Dtype::Float && problem.hidden % kTf32Vector == 0;
  const Sizes sizes{problem,        problem.is_16_bits(), tf32_allowed,   sequence.steps,
                    sequence.batch, problem.input(),      problem.hidden, problem.directions};
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (sizes.steps > kMax / 256 || sizes.batch > kMax / 256 || sizes.hidden > kMax / 256 ||
      sizes.input > kMax / 256 || sizes.steps * sizes.batch > (sequence.is_packed() ? kMax / 8 : kMax)) {
    // Of a packed one four kinds of rows are copied in one launch (training/packed.h).
    return "sizes beyond 32 bits";
  }
  RnnPlan plan{};
  plan.problem = problem;
  plan.overlaps = gpu.may_overlap();
  if (const char* reason = choose_route(sizes, gpu, plan)) {
    return reason;
  }
  if (const char* reason = lacks(gpu, plan.needs())) {
    return reason;
  }
  return plan;
}

}  // namespace aten_ext::cuda
