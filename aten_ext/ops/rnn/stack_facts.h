// Stacks of large layers that cuDNN 9.19 runs in less of the GPU's time, as data for the policy (plan.cpp);
// the figures are in docs/kernels/rnn.md. It runs a stack's layers beside one another, ours one after the
// other. Standard library only.
#pragma once

#include <algorithm>
#include <iterator>

#include "ops/rnn/layers_in_ranges.h"
#include "ops/rnn/plan.h"

namespace aten_ext::cuda {

// Of one direction, on tensor cores all over the GPU: the more rows a group has, the longer is a step of
// ours. Of more units cuDNN's steps are two to three times as long: T=256 B=64 H=1024, two layers of a GRU.
struct StacksOverGpu {
  int cells, dtypes;
  Range layers, steps, hidden, rows_of_group;

  bool has(const RnnPlan& plan) const {
    const RnnProblem& problem = plan.problem;
    return (cells & bit_of(problem.cell)) != 0 && (dtypes & bit_of(problem.dtype)) != 0 &&
           layers.has(problem.layers) && steps.has(static_cast<double>(problem.sequence.steps)) &&
           hidden.has(static_cast<double>(problem.hidden)) && rows_of_group.has(plan.recurrence.rows);
  }
};

// Without gradients.
constexpr StacksOverGpu kKeptStacks[] = {
    // cells, dtypes, layers, steps, hidden, rows of a group
    {kGru, kFp32 | kFp16, kSeveral, kAny, {513, 900}, at_least(20)},
    {kLstm, kFp32 | kFp16, kSeveral, kAny, {513, 840}, at_least(27)},
    {kRnn, kFp32 | kFp16, at_least(3), kAny, {513, 1000}, at_least(25)},
    {kRnn, kFp32 | kFp16, kSeveral, at_most(8), {513, 1000}, at_least(28)},
    {kAnyCell, kBf16, at_least(4), kAny, {513, 840}, at_least(25)},
};
constexpr StacksOverGpu kKeptStacksInTraining[] = {
    {kGru | kLstm, kFp32 | kFp16, at_least(3), kAny, {513, 900}, at_least(30)},
    {kRnn, kFp32 | kFp16, at_least(3), at_most(16), {513, 1000}, at_least(25)},
    {kRnn, kFp32 | kFp16, kSeveral, at_most(8), {513, 1000}, at_least(27)},
};

template <int kCount>
bool is_stack_in(const StacksOverGpu (&table)[kCount], const RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  const Recurrence& recurrence = plan.recurrence;
  return plan.route == Route::Recurrence && recurrence.exchange == Exchange::Grid &&
         recurrence.math != Math::Fma && problem.directions == 1 && !problem.is_step_by_step() &&
         std::any_of(std::begin(table), std::end(table),
                     [&](const StacksOverGpu& stacks) { return stacks.has(plan); });
}

inline bool is_kept_stack(const RnnPlan& plan) {
  return !plan.problem.differentiated && is_stack_in(kKeptStacks, plan);
}

}  // namespace aten_ext::cuda
