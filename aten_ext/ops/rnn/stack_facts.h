// Stacks of large layers that cuDNN 9.19 runs in less of the GPU's time, as data for the policy (plan.cpp);
// the figures are in docs/kernels/rnn.md. It runs a stack's layers beside one another, ours one after the
// other. Standard library only.
#pragma once

#include <algorithm>
#include <iterator>

#include "ops/rnn/layers_in_ranges.h"
#include "ops/rnn/plan.h"

namespace aten_ext::cuda {

// Of one direction: the more rows a group has, the longer is a step of ours. On tensor cores all over the
// GPU, of more units cuDNN's steps are two to three times as long: T=256 B=64 H=1024, two layers of a GRU.
struct LargeStacks {
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
constexpr LargeStacks kKeptStacks[] = {
    // cells, dtypes, layers, steps, hidden, rows of a group
    {kGru, kFp32 | kFp16, kSeveral, kAny, {513, 900}, at_least(20)},
    {kLstm, kFp32 | kFp16, kSeveral, kAny, {513, 840}, at_least(27)},
    {kRnn, kFp32 | kFp16, at_least(3), kAny, {513, 1000}, at_least(25)},
    {kRnn, kFp32 | kFp16, kSeveral, at_most(8), {513, 1000}, at_least(28)},
    {kAnyCell, kBf16, at_least(4), kAny, {513, 840}, at_least(25)},
    // T=134, 50 rows, H = 568, three layers: 2,045 us, ours 2,216.
    {kLstm, kFp32, at_least(3), kAny, {540, 840}, at_least(16)},
};
// In clusters of blocks: states of whole vectors on tensor cores (five layers of an RNN, H = 568, 192 rows:
// 131 us, ours 150), and multiply-adds.
constexpr LargeStacks kKeptStacksInClusters[] = {
    {kAnyCell, k16Bits, at_least(4), kAny, {300, 640}, at_least(26)},
    {kLstm, kFp16, at_least(3), kAny, {300, 640}, at_least(29)},
};
constexpr LargeStacks kKeptStacksOfMultiplyAdds[] = {
    {kGru, kFp32, at_least(4), kAny, {257, 640}, at_least(13)},
};
constexpr LargeStacks kKeptStacksInTraining[] = {
    {kGru | kLstm, kFp32 | kFp16, at_least(3), kAny, {513, 900}, at_least(30)},
    {kRnn, kFp32 | kFp16, at_least(3), at_most(16), {513, 1000}, at_least(25)},
    {kRnn, kFp32 | kFp16, kSeveral, at_most(8), {513, 1000}, at_least(27)},
};

template <int kCount>
bool is_stack_in(const LargeStacks (&table)[kCount], const RnnPlan& plan) {
  return plan.problem.directions == 1 && !plan.problem.is_step_by_step() &&
         std::any_of(std::begin(table), std::end(table),
                     [&](const LargeStacks& stacks) { return stacks.has(plan); });
}

// On tensor cores all over the GPU.
template <int kCount>
bool is_stack_over_gpu_in(const LargeStacks (&table)[kCount], const RnnPlan& plan) {
  return plan.route == Route::Recurrence && plan.recurrence.exchange == Exchange::Grid &&
         plan.recurrence.math != Math::Fma && is_stack_in(table, plan);
}

inline bool is_kept_stack(const RnnPlan& plan) {
  if (plan.problem.differentiated) {
    return false;
  }
  if (plan.route == Route::Recurrence && plan.recurrence.exchange == Exchange::Cluster) {
    return plan.recurrence.math == Math::Fma ? is_stack_in(kKeptStacksOfMultiplyAdds, plan)
                                             : are_vectors(true, plan.problem.hidden, plan.problem.hidden) &&
                                                   is_stack_in(kKeptStacksInClusters, plan);
  }
  return is_stack_over_gpu_in(kKeptStacks, plan);
}

}  // namespace aten_ext::cuda
