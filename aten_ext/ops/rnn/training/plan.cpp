// The policy of a backward. Figures behind each constant are in docs/kernels/rnn.md.
#include "ops/rnn/training/plan.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/gpu.h"
#include "core/math.h"
#include "ops/rnn/cudnn_facts.h"
#include "ops/rnn/few_products.h"
#include "ops/rnn/groups.h"
#include "ops/rnn/launch_bound.h"
#include "ops/rnn/stack_facts.h"
#include "ops/rnn/training/sizes.h"
#include "ops/rnn/training/upstream_facts.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Coefficients of so many bytes exist at once, or half of all if those are more: with them the peak of a
// training step is upstream's at most. And of a huge sequence so many.
constexpr int64_t kChunkBytes = int64_t{32} << 20;
constexpr int64_t kChunks = 2;
constexpr int64_t kMostChunkBytes = int64_t{192} << 20;
// Projections of an LSTM in 16 bits of more bytes are made in two parts beside what a forward saves, of so
// many steps at least: a launch more takes 6 us and more. Of several layers all that is saved lies beside the
// projections of the last.
constexpr int64_t kProjectionBytes = int64_t{24} << 20;
constexpr int64_t kProjectionSteps = 320;
constexpr int64_t kProjectionStepsOfSeveral = 160;
// A mask is three launches, longer than the kernels gain in one step: two layers of 256 units took 81 us
// instead of 74 in training, 33 instead of 23 without gradients. Twenty steps gained. Between them nothing
// was measured, so a few more are left to upstream.
constexpr int64_t kFewStepsOfDropout = 4;
// Bytes of the products of gates, which are read again while the L2 has them. Of more than so few they should
// fit where gradients of 16 bits will be (layer.cpp).
constexpr int64_t kPartBytes = int64_t{32} << 20;
constexpr int64_t kFewPartBytes = int64_t{8} << 20;
// Where cuDNN multiplies in TF32, if it may, seen by its error: weights' and input's gradients of two rows
// and more, of all sizes. What makes the states' gradients only here.
constexpr int64_t kTf32BeyondHidden = 192;
constexpr int64_t kTf32Batch = 4;
// And where it does not although it may: gradients of weights of so few elements, summed over so few rows.
// Seen from 24 rows to 72 of up to 135 thousand elements (128 of 65 thousand, too).
constexpr int64_t kFewWeightElements = 140'000;
constexpr int64_t kFewWeightRows = 128;
// Gradients of weights of both directions are one batch, unless they have less than a tile for each
// multiprocessor and sums over more rows than these (fp32, TF32, 16 bits): in a batch those are not split.
constexpr int64_t kWeightTile = 64;
constexpr int64_t kLongSums[3] = {512, 1024, 4096};
// Rows that library products are slower for, if they are few (few_products.h).
constexpr int64_t kFewRows = 64;
// Layers in a block or cluster whose gates are computed again in less time than their forward needs to save
// them: of fewer units (rows times H times directions) and more steps. Saving costs each step about 0.1 us.
struct ComputedAgain {
  Cell cell;
  bool sixteen_bits;
  int64_t units, steps;
};
constexpr ComputedAgain kComputedAgain[] = {{Cell::Gru, true, 3072, 40}, {Cell::Gru, false, 512, 120}};
// A product and a launch for each step are faster than upstream from so many rows on, whatever the size.
constexpr int64_t kManyRows = 512;

// ------------------------------------------------------------------------------------------------------

bool may_tf32(const RnnProblem& problem) {
  return problem.dtype == Dtype::Float && problem.tf32_allowed && problem.hidden % kTf32Vector == 0;
}

bool is_few_rows(const RnnProblem& problem) {
  if (problem.sequence.is_packed()) {
    return false;
  }
  const int64_t rows = problem.sequence.steps * problem.sequence.batch;
  const double weights = static_cast<double>(problem.gates() * problem.hidden) *
                         static_cast<double>(problem.input() + problem.hidden);
  return rows <= kFewRows && are_few_products(rows, weights, problem.is_16_bits());
}

bool are_weights_apart(const RnnBackwardPlan& plan, const Gpu& gpu) {
  const RnnProblem& problem = plan.problem;
  const int64_t columns = std::min(problem.sequence.features, problem.hidden);
  const int64_t tiles =
      ceil_div(problem.gates() * problem.hidden, kWeightTile) * ceil_div(columns, kWeightTile);
  return tiles * problem.directions < gpu.multiprocessors &&
         problem.sequence.rows() > kLongSums[problem.is_16_bits() ? 2
                                             : plan.tf32_results  ? 1
                                                                  : 0];
}

// Pieces of `steps` of at most so many bytes, all about as long.
int64_t piece(int64_t steps, int64_t bytes_of_step, int64_t bytes) {
  const int64_t most = std::max<int64_t>(1, bytes_of_step == 0 ? steps : bytes / bytes_of_step);
  return ceil_div(steps, ceil_div(steps, most));
}

bool choose_one_launch(RnnBackwardPlan& plan, const Gpu& gpu) {
  const RnnProblem& problem = plan.problem;
  if (problem.sequence.steps == 1) {
    return false;
  }
  const auto choice =
      choose_recurrence_backward({plan.chunk, problem.sequence.batch, problem.hidden, problem.directions},
                                 problem.cell, problem.dtype, plan.tf32, gpu);
  if (choice.reason() != nullptr || lacks(gpu, choice.plan().needs()) != nullptr) {
    return false;
  }
  plan.recurrence = choice.plan();
  return true;
}

}  // namespace

RnnBackwardPlan plan_rnn_backward(const RnnProblem& problem, const Wanted& wanted, const Gpu& gpu,
                                  bool saved) {
  RnnBackwardPlan plan{};
  plan.problem = problem;
  plan.wanted = wanted;
  const Sequence& sequence = problem.sequence;
  plan.overlaps = gpu.may_overlap();
  plan.few_rows = is_few_rows(problem);
  plan.tf32_results = problem.dtype == Dtype::Float && problem.tf32_allowed && sequence.batch > 1;
  plan.weights_apart = are_weights_apart(plan, gpu);
  plan.tf32 = may_tf32(problem) && problem.hidden > kTf32BeyondHidden && sequence.batch >= kTf32Batch;
  const int64_t step_bytes = sequence.batch * problem.hidden * problem.directions * int64_t{sizeof(float)};
  const int64_t of_coefficients = step_bytes * coefficients_of(problem.cell);
  const int64_t most = std::max(kChunkBytes, ceil_div(sequence.steps, kChunks) * of_coefficients);
  plan.chunk = piece(sequence.steps, of_coefficients, std::min(most, kMostChunkBytes));
  const int64_t of_gates = step_bytes * recomputed_of(problem.cell);
  plan.part = piece(plan.chunk, of_gates, kPartBytes);
  if (problem.is_16_bits() && plan.part * of_gates > kFewPartBytes) {
    plan.part = std::max<int64_t>(1, std::min(plan.part, plan.chunk / 2));
  }
  if (saved) {
    const int64_t chunk = std::exchange(plan.chunk, sequence.steps);
    plan.saved = choose_one_launch(plan, gpu);
    plan.one_launch = plan.saved;
    if (plan.saved) {
      return plan;
    }
    plan.chunk = chunk;
  }
  plan.one_launch = choose_one_launch(plan, gpu);
  return plan;
}

namespace {

bool is_computed_again(const RnnPlan& forward) {
  const RnnProblem& problem = forward.problem;
  const Sequence& sequence = problem.sequence;
  const int64_t units = sequence.batch * problem.hidden * problem.directions;
  return forward.recurrence.exchange != Exchange::Grid &&
         std::any_of(std::begin(kComputedAgain), std::end(kComputedAgain), [&](const ComputedAgain& layers) {
           return problem.cell == layers.cell && problem.is_16_bits() == layers.sixteen_bits &&
                  units < layers.units && sequence.steps > layers.steps;
         });
}

}  // namespace

std::vector<Piece> pieces_of_backward(const RnnBackwardPlan& plan) {
  const std::vector<Piece> pieces = pieces_of(plan.problem, plan.saved);
  return plan.saved ? pieces : cut(pieces, plan.chunk);
}

RecurrenceBackward of_fewer_rows(const RnnProblem& problem, const RecurrenceBackward& recurrence,
                                 int64_t batch) {
  if (batch == problem.sequence.batch) {
    return recurrence;
  }
  const RecurrenceBackwardSizes sizes{problem.sequence.steps, batch, problem.hidden, problem.directions};
  RecurrenceBackward r = recurrence;
  if (r.math == Math::Fma) {
    r.rows = rows_in_as_many_groups(problem.sequence.batch, recurrence.rows, batch);
    if (choose_backward_kernel(sizes, problem.cell, problem.dtype, r)) {
      return r;
    }
    r = recurrence;
  }
  (void)choose_backward_kernel(sizes, problem.cell, problem.dtype, r);  // it took more of such groups
  return r;
}

bool has_tf32_weights(const RnnBackwardPlan& plan, int64_t columns) {
  const RnnProblem& problem = plan.problem;
  const bool few = problem.gates() * problem.hidden * columns <= kFewWeightElements &&
                   problem.sequence.rows() <= kFewWeightRows;
  return plan.tf32_results && columns > 1 && !few;
}

bool saves_coefficients(const RnnPlan& forward, const Gpu& gpu) {
  const RnnProblem& problem = forward.problem;
  return problem.differentiated && recomputed_of(problem.cell) > 0 && forward.route == Route::Recurrence &&
         forward.recurrence.family != KernelFamily::Fma && !is_computed_again(forward) &&
         (!problem.is_16_bits() || problem.hidden % 2 == 0) &&
         plan_rnn_backward(problem, {true, true, true, true}, gpu, true).saved;
}

const char* decline_training(const RnnPlan& forward, const Gpu& gpu) {
  const RnnProblem& problem = forward.problem;
  if ((is_kept_in_training(problem, forward.saves) || is_kept_stack_in_training(forward)) &&
      !is_launch_bound(problem, gpu)) {
    return "layer that upstream trains in less time";
  }
  if (problem.drops() && problem.sequence.steps <= kFewStepsOfDropout && !is_launch_bound(problem, gpu)) {
    return "few steps with dropout between layers";
  }
  if (problem.sequence.steps > 1 && problem.sequence.batch < kManyRows &&
      !plan_rnn_backward(problem, {true, true, true, true}, gpu, false).one_launch) {
    return "no fast backward";
  }
  return nullptr;
}

int64_t choose_saving_chunk(const RnnPlan& forward) {
  const RnnProblem& problem = forward.problem;
  const int64_t steps = problem.sequence.steps;
  const int64_t projections = steps * problem.sequence.batch * problem.directions * problem.gates() *
                              problem.hidden * int64_t{sizeof(float)};
  const int64_t least = problem.layers > 1 ? kProjectionStepsOfSeveral : kProjectionSteps;
  const bool many = problem.cell == Cell::Lstm && problem.is_16_bits() && projections > kProjectionBytes &&
                    steps >= kChunks * least;
  return many ? std::min(forward.chunk, ceil_div(steps, kChunks)) : forward.chunk;
}

std::string RnnBackwardPlan::describe() const {
  const std::string pieces = chunk < problem.sequence.steps
                                 ? ", " + std::to_string(chunk) + " steps at a time"
                             : saved ? ", coefficients of the forward"
                                     : "";
  return "backward: " +
         (one_launch ? recurrence.describe() : std::string("a product and a launch for each step")) + pieces;
}

Needs RnnBackwardPlan::needs() const {
  return one_launch ? recurrence.needs() : Needs{};
}

}  // namespace aten_ext::cuda
