// The policy of a backward. Figures behind each constant are in docs/kernels/rnn.md.
#include "ops/rnn/training/plan.h"

#include <algorithm>

#include "core/gpu.h"
#include "core/math.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Bytes of coefficients, and of the products of gates: the latter are read again while the L2 has them.
constexpr int64_t kChunkBytes = int64_t{192} << 20;
constexpr int64_t kPartBytes = int64_t{32} << 20;
// Where cuDNN multiplies in TF32, if it may: ops/rnn/plan.cpp.
constexpr int64_t kTf32BeyondHidden = 192;
constexpr int64_t kTf32Batch = 20;
constexpr int64_t kTf32AnyBatchHidden = 640;
constexpr int64_t kTf32Multiple = 4;
// Steps up to which a product and a launch for each are as fast as upstream.
constexpr int64_t kMaxStepLaunches = 4;

// ------------------------------------------------------------------------------------------------------

bool is_tf32(const RnnProblem& problem) {
  return problem.dtype == Dtype::Float && problem.tf32_allowed && problem.hidden % kTf32Multiple == 0 &&
         problem.sequence.features % kTf32Multiple == 0 && problem.hidden > kTf32BeyondHidden &&
         (problem.sequence.batch >= kTf32Batch || problem.hidden >= kTf32AnyBatchHidden);
}

// Pieces of `steps` of at most so many bytes, all about as long.
int64_t piece(int64_t steps, int64_t bytes_of_step, int64_t bytes) {
  const int64_t most = std::max<int64_t>(1, bytes_of_step == 0 ? steps : bytes / bytes_of_step);
  return ceil_div(steps, ceil_div(steps, most));
}

bool choose_one_launch(RnnBackwardPlan& plan, const Gpu& gpu) {
  const RnnProblem& problem = plan.problem;
  if (problem.sequence.steps <= kMaxStepLaunches) {
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

RnnBackwardPlan plan_rnn_backward(const RnnProblem& problem, const Wanted& wanted, const Gpu& gpu) {
  RnnBackwardPlan plan{};
  plan.problem = problem;
  plan.wanted = wanted;
  plan.tf32 = is_tf32(problem);
  const int64_t units = problem.sequence.batch * problem.hidden * problem.directions;
  const int64_t bytes = int64_t{sizeof(float)};
  plan.chunk = piece(problem.sequence.steps, units * coefficients_of(problem.cell) * bytes, kChunkBytes);
  plan.part = piece(plan.chunk, units * recomputed_of(problem.cell) * bytes, kPartBytes);
  plan.one_launch = choose_one_launch(plan, gpu);
  return plan;
}

const char* decline_training(const RnnPlan& forward, const Gpu& gpu) {
  const RnnProblem& problem = forward.problem;
  if (problem.layers > 1 && problem.dropout != 0.0) {
    return "dropout between layers";
  }
  if (problem.sequence.steps > kMaxStepLaunches &&
      !plan_rnn_backward(problem, {true, true, true, true}, gpu).one_launch) {
    return "no fast backward";
  }
  return nullptr;
}

std::string RnnBackwardPlan::describe() const {
  const std::string pieces =
      chunk < problem.sequence.steps ? ", " + std::to_string(chunk) + " steps at a time" : "";
  return "backward: " +
         (one_launch ? recurrence.describe() : std::string("a product and a launch for each step")) + pieces;
}

Needs RnnBackwardPlan::needs() const {
  return one_launch ? recurrence.needs() : Needs{};
}

}  // namespace aten_ext::cuda
