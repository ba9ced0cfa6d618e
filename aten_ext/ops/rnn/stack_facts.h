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
    // Four layers and more: of 128 such stacks five were below 0.98, and the median was 1.3. T=5, 66 rows of
    // I = H = 624, five layers of an RNN: 114 us, ours 144. T=7, 53 rows, H = 704, four of a GRU: 167 us,
    // 197.
    {kAnyCell, kFp32 | kFp16, at_least(4), kAny, at_least(513), at_least(14)},
};
// The same of whole vectors alone; of 3,300 random stacks on an H200. T=14, 74 rows, H = 576, five layers of
// an LSTM: 320 us, ours 410. And one group of few rows of many units: T=12, 11 rows, H = 1152, three layers:
// 198 us, ours 225; T=11, 12 rows, H = 1344, four of an RNN: 164, ours 207.
constexpr LargeStacks kKeptStacksOfVectors[] = {
    {kLstm, kFp32 | kFp16, at_least(3), kAny, {513, 1000}, at_least(25)},
    {kLstm, kFp16, at_least(3), at_most(10), {640, 720}, at_least(22)},
    {kLstm, kFp16, at_least(3), at_most(8), {513, 1000}, at_least(16)},
    // T=6 B=53 I=32 H=1024, three layers: 145 us, ours 157.
    {kLstm, kFp16, at_least(3), at_most(8), {1000, 1040}, at_least(25)},
    {kLstm, kFp16, at_least(4), at_most(13), {513, 640}, at_least(8)},
    {kGru, kFp32 | kFp16, at_least(3), kAny, {900, 930}, at_least(25)},
    {kRnn, kFp16, kSeveral, at_most(16), {513, 800}, at_least(25)},
    {kRnn, kBf16, at_least(3), kAny, {513, 840}, at_least(28)},
    {kGru | kLstm, kFp16, at_least(3), kAny, {1040, 1250}, at_least(9)},
    {kRnn, kFp16, at_least(3), kAny, {1040, 1680}, at_least(9)},
    {kRnn, kBf16, at_least(3), kAny, {1190, 1500}, at_least(11)},
};
// Multiply-adds all over the GPU. T=12, 22 rows, H = 425, five layers of an LSTM: 416 us, ours 535.
constexpr LargeStacks kKeptStacksOfMultiplyAddsOverGpu[] = {
    {kLstm, kFp32, at_least(3), kAny, {385, 512}, at_least(8)},
    {kLstm, kFp32, at_least(5), kAny, {385, 512}, at_least(4)},
    // T=458, three rows of I=256, H=1184, two layers: 6.7 ms, ours 7.5. Of one layer 14 such had 1.14 and
    // more.
    {kGru, kFp32, kSeveral, kAny, at_least(1025), kAny},
    {kGru, kFp32, at_least(4), kAny, {513, 545}, at_least(12)},
    {kRnn, kFp32, at_least(5), at_most(6), {513, 545}, at_least(8)},
};
// In clusters of blocks: states of whole vectors on tensor cores (five layers of an RNN, H = 568, 192 rows:
// 131 us, ours 150), and multiply-adds.
constexpr LargeStacks kKeptStacksInClusters[] = {
    {kAnyCell, k16Bits, at_least(4), kAny, {300, 640}, at_least(26)},
};
// In clusters of 16: nine of 17 such stacks lost, of 13 without whole vectors none. T=32, 207 rows, H = 296,
// four layers of an LSTM: 585 us, ours 709.
constexpr int kLargeCluster = 16;
constexpr LargeStacks kKeptStacksInLargeClusters[] = {
    {kAnyCell, k16Bits, at_least(3), kAny, {290, 640}, at_least(25)},
    {kAnyCell, kFp16, at_least(4), kAny, {290, 640}, at_least(16)},
    // T=16 B=180 I=39 H=376, five layers: 519 us, ours 568.
    {kGru, kFp32, at_least(4), kAny, {257, 640}, kAny},
    {kRnn, kFp32, at_least(3), kAny, {290, 640}, at_least(25)},
    {kRnn, kFp16, kSeveral, at_most(4), {513, 640}, at_least(25)},
};
constexpr LargeStacks kKeptStacksOfMultiplyAdds[] = {
    {kGru, kFp32, at_least(4), kAny, {257, 640}, at_least(13)},
};
constexpr LargeStacks kKeptStacksInTraining[] = {
    // 21 such stacks had 1.19 in the median, and three were below 0.95. T=19, 58 rows, H = 576, four layers
    // of an LSTM in bf16: 985 us, ours 1,167. T=212, 44 rows, H = 1000: 11.4 ms, 12.6.
    {kAnyCell, kAnyDtype, at_least(3), kAny, at_least(513), at_least(20)},
    {kAnyCell, kAnyDtype, at_least(4), kAny, at_least(513), at_least(16)},
    {kLstm, kFp32 | kFp16, kSeveral, kAny, {640, 900}, at_least(23)},
    {kRnn, kFp32 | kFp16, kSeveral, at_most(8), {513, 1000}, at_least(27)},
    {kGru | kRnn, kFp16, at_least(4), kAny, {1040, 1400}, at_least(12)},
    // T=565 B=10 I=1080 H=1120, four layers in bf16: 22.7 ms, ours 29.0. T=36 B=11 of 1,111 units in
    // fp16: 4.4 and 3.7 ms.
    {kLstm, k16Bits, at_least(4), at_least(200), at_least(1025), at_least(9)},
};

// Packed sequences without gradients, which are padded: of so many rows in a group a step of ours is longer
// than all layers' of cuDNN. Of 1,572 random stacks 111 were below 0.95: T=39, 204 rows, H = 400, six layers
// of an LSTM in fp16 took 929 us, ours 1,568. Of both directions 819 had 1.15 at least.
constexpr LargeStacks kKeptPackedStacksOverGpu[] = {
    {kAnyCell, kAnyDtype, kSeveral, kAny, kAny, at_least(29)},
    {kAnyCell, kAnyDtype, at_least(3), kAny, kAny, at_least(20)},
    {kLstm, kFp32, at_least(4), kAny, kAny, at_least(16)},
    // T=69 B=64 I=300 H=640, two layers: 690 us, ours 737.
    {kLstm, kAnyDtype, kSeveral, kAny, {590, 680}, at_least(22)},
    // Of fewer steps a piece more costs more. T=13 B=54 I = H = 768, two layers: 154 us, ours 180.
    {kAnyCell, kAnyDtype, kSeveral, at_most(16), kAny, at_least(23)},
    {kAnyCell, kAnyDtype, kSeveral, at_most(8), kAny, at_least(20)},
    {kAnyCell, kAnyDtype, at_least(4), at_most(12), kAny, at_least(16)},
    {kLstm, kFp16, at_least(5), at_most(20), kAny, at_least(12)},
};
constexpr LargeStacks kKeptPackedStacksInLargeClusters[] = {
    {kAnyCell, kAnyDtype, kSeveral, kAny, kAny, at_least(23)},
    {kAnyCell, kAnyDtype, at_least(3), kAny, kAny, at_least(20)},
    {kAnyCell, kAnyDtype, at_least(4), kAny, kAny, at_least(15)},
    {kGru, kAnyDtype, kSeveral, kAny, kAny, at_least(18)},
};
constexpr LargeStacks kKeptPackedStacksInClusters[] = {
    {kGru, kAnyDtype, at_least(3), kAny, kAny, at_least(16)},
    {kRnn, kFp16, at_least(4), kAny, kAny, at_least(18)},
    {kAnyCell, kAnyDtype, at_least(4), kAny, kAny, at_least(25)},
};
constexpr LargeStacks kKeptPackedStacksOfMultiplyAdds[] = {
    {kRnn, kFp32, at_least(3), kAny, kAny, at_least(12)},
    {kRnn, kFp32, at_least(4), kAny, kAny, at_least(8)},
};
// T=31 B=24 I=300 H=393, three layers: 586 us, ours 711. T=9 B=16 I=512 H=400, two: 128 us, ours 139.
constexpr LargeStacks kKeptPackedStacksOfMultiplyAddsOverGpu[] = {
    {kLstm, kFp32, at_least(3), kAny, kAny, at_least(8)},
    {kLstm, kFp32, kSeveral, at_most(12), kAny, at_least(8)},
    {kLstm, kFp32, at_least(5), kAny, {385, 512}, at_least(4)},
    // T=79 B=2 I = H = 1072, two layers: 753 us, ours 822.
    {kRnn, kFp32, kSeveral, kAny, at_least(1025), at_least(2)},
};
// With gradients: of 631 such sequences, most of them stacks, 39 were below 0.95. T=58, 64 rows of I=40,
// H=615, five layers of an LSTM in bf16: 7.8 ms, ours 11.3.
constexpr LargeStacks kKeptPackedStacksInTraining[] = {
    {kAnyCell, kAnyDtype, kSeveral, kAny, kAny, at_least(20)},
    {kLstm, kAnyDtype, at_least(3), kAny, kAny, at_least(16)},
    {kLstm, k16Bits, at_least(4), kAny, kAny, at_least(8)},
};
constexpr LargeStacks kKeptPackedStacksInClustersInTraining[] = {
    {kAnyCell, kFp16, at_least(4), kAny, kAny, at_least(8)},
    {kRnn, kFp32, at_least(3), kAny, kAny, at_least(12)},
};

template <int kCount>
bool is_stack_in(const LargeStacks (&table)[kCount], const RnnPlan& plan) {
  return plan.problem.directions == 1 &&
         std::any_of(std::begin(table), std::end(table),
                     [&](const LargeStacks& stacks) { return stacks.has(plan); });
}

inline bool is_over_gpu(const RnnPlan& plan) {
  return plan.route == Route::Recurrence && plan.recurrence.exchange == Exchange::Grid;
}

inline bool is_in_clusters(const RnnPlan& plan) {
  return plan.route == Route::Recurrence && plan.recurrence.exchange == Exchange::Cluster;
}

// On tensor cores all over the GPU.
template <int kCount>
bool is_stack_over_gpu_in(const LargeStacks (&table)[kCount], const RnnPlan& plan) {
  return is_over_gpu(plan) && plan.recurrence.math != Math::Fma && is_stack_in(table, plan);
}

inline bool is_kept_padded_stack(const RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  const bool vectors = are_vectors(problem.is_16_bits(), problem.hidden, problem.hidden);
  const Recurrence& recurrence = plan.recurrence;
  if (is_in_clusters(plan)) {
    return recurrence.math == Math::Fma
               ? is_stack_in(kKeptStacksOfMultiplyAdds, plan)
               : vectors &&
                     (is_stack_in(kKeptStacksInClusters, plan) ||
                      (recurrence.blocks == kLargeCluster && is_stack_in(kKeptStacksInLargeClusters, plan)));
  }
  if (is_over_gpu(plan) && recurrence.math == Math::Fma) {
    return is_stack_in(kKeptStacksOfMultiplyAddsOverGpu, plan);
  }
  return is_stack_over_gpu_in(kKeptStacks, plan) ||
         (vectors && is_stack_over_gpu_in(kKeptStacksOfVectors, plan));
}

inline bool is_kept_packed_stack(const RnnPlan& plan) {
  const Recurrence& recurrence = plan.recurrence;
  const bool over_gpu = is_over_gpu(plan);
  if (!over_gpu && !is_in_clusters(plan)) {
    return false;
  }
  if (recurrence.math == Math::Fma) {
    return is_stack_in(kKeptPackedStacksOfMultiplyAdds, plan) ||
           (over_gpu && is_stack_in(kKeptPackedStacksOfMultiplyAddsOverGpu, plan));
  }
  return over_gpu                             ? is_stack_in(kKeptPackedStacksOverGpu, plan)
         : recurrence.blocks == kLargeCluster ? is_stack_in(kKeptPackedStacksInLargeClusters, plan)
                                              : is_stack_in(kKeptPackedStacksInClusters, plan);
}

// `forward`: its plan.
inline bool is_kept_stack_in_training(const RnnPlan& forward) {
  if (!forward.problem.is_step_by_step()) {
    return is_stack_over_gpu_in(kKeptStacksInTraining, forward);
  }
  return is_stack_over_gpu_in(kKeptPackedStacksInTraining, forward) ||
         (is_in_clusters(forward) && is_stack_in(kKeptPackedStacksInClustersInTraining, forward));
}

inline bool is_kept_stack(const RnnPlan& plan) {
  return !plan.problem.differentiated &&
         (plan.problem.is_step_by_step() ? is_kept_packed_stack(plan) : is_kept_padded_stack(plan));
}

}  // namespace aten_ext::cuda
