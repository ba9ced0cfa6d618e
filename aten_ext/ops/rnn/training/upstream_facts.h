// Where upstream trains a layer in less of the GPU's time than we do, as data for the policy (plan.cpp),
// which asks where launches do not decide (launch_bound.h): cuDNN 9.19 on an H200, 17,000 random calls;
// figures are in docs/kernels/rnn.md. Standard library only.
#pragma once

#include "ops/rnn/layers_in_ranges.h"

namespace aten_ext::cuda {

// Steps from which the tables of several steps hold, and not what cuDNN keeps on the chip in inference; and
// the largest layers that were measured for them.
constexpr int64_t kSeveralTrainingSteps = 5;
constexpr int64_t kJudgedHidden = 192;
constexpr Range kFewSteps{2, kSeveralTrainingSteps - 1};
constexpr Range kFromFive = at_least(kSeveralTrainingSteps);

// cuDNN keeps the layer on the chip, with 0.6 us a step; of two directions ours run at once. A forward that
// saves what its backward reads:
constexpr LayersInRanges kKeptOfSaving[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows
    {kGru, kFp32, kOne, kAny, kFromFive, at_most(94), kAny, {35, 1730}},
    {kGru, kFp32, kOne, kSeveral, kFromFive, at_most(128), kAny, at_most(1730)},
    {kGru, kFp32, kOne, kSeveral, kFromFive, at_most(94), kAny, at_most(2400)},
    {kGru, kFp32, kOne, kAny, kFromFive, at_most(16), kAny, {1730, 2700}},
    {kGru, kFp32, kTwo, kAny, {5, 10}, at_most(31), {24, 70}},
    of_units(at_most(11200), {kGru, kFp16, kOne, kAny, kFromFive, at_most(128), kAny, at_most(7000)}),
    of_units({11200, 24000}, {kGru, kFp16, kOne, kAny, kFromFive, at_most(124), kAny, at_most(3500)}),
    {kGru, kFp16, kTwo, kAny, {5, 10}, at_most(24), at_least(24)},
    of_units(at_most(13500), {kLstm, kFp32, kOne, kAny, kFromFive, at_most(96), kAny, at_most(14300)}),
    of_units(at_most(10300), {kLstm, kFp32, kOne, kAny, kFromFive, at_most(96), kAny, at_most(22000)}),
    of_units(at_most(20000), {kLstm, kFp32, kOne, kAny, kFromFive, at_most(96), kAny, at_most(3000)}),
    of_units(at_most(15000), {kLstm, kFp16, kOne, kAny, kFromFive, at_most(96), kAny, at_most(12600)}),
    of_units(at_most(1000), {kLstm, kFp16, kOne, kAny, kFromFive, at_most(96)}),
    of_units({15000, 24000}, {kLstm, kFp16, kOne, kAny, {5, 8}, at_most(96)}),
    {kLstm, kFp16, kOne, kAny, {5, 5}, {97, 128}},
    {kLstm, kFp32 | kFp16, kTwo, kAny, {5, 10}, at_most(24), at_least(150)},
};

// And one whose backward computes the gates again: an RNN's, that of an odd hidden size in 16 bits, and of
// few units and many steps.
constexpr LayersInRanges kKeptOfComputing[] = {
    {kGru, kFp32, kOne, kAny, kFromFive, at_most(80), kAny, at_most(2900)},
    {kGru, kFp32, kTwo, kAny, {5, 10}, at_most(31), {24, 70}},
    {kGru, kFp16, kOne, kAny, kFromFive, at_most(128), at_most(350), at_most(14500)},
    {kGru, kFp16, kOne, kAny, kFromFive, at_most(128), at_most(91)},
    {kGru, kFp16, kTwo, kAny, {5, 42}, at_most(140), kAny, at_least(50)},
    {kGru, kFp16, kTwo, kAny, {43, 80}, at_most(30)},
    {kLstm, kFp16, kOne, kAny, kFromFive, at_most(98)},
    {kLstm, kFp16, kTwo, kAny, {5, 61}, at_most(40)},
    {kRnn, kFp32, kOne, kAny, kFromFive, at_most(192)},
    {kRnn, kFp16, kOne, kAny, kFromFive, at_most(180)},
    {kRnn, kFp32 | kFp16, kTwo, kAny, {5, 100}, at_most(kJudgedHidden), at_least(85)},
    {kRnn, kFp32 | kFp16, kTwo, kAny, kFromFive, at_most(kJudgedHidden), at_least(250)},
    {kRnn, kFp32 | kFp16, kTwo, kAny, {5, 30}, at_most(60), kAny, at_least(90)},
    {kRnn, kFp32, kTwo, kAny, {5, 12}, {60, 80}, at_least(24)},
    {kRnn, kFp16, kTwo, kAny, {31, 80}, at_most(25)},
};

constexpr LayersInRanges kKeptInTraining[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows, weights, products
    // Up to four steps of a layer that cuDNN keeps on the chip.
    {kGru, kFp32, kOne, kAny, kFewSteps, at_most(112), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kFewSteps, at_most(124), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kFewSteps, at_most(20)},
    {kGru, kFp16, kOne, kAny, kFewSteps, {125, 128}, at_most(100)},
    {kGru, kFp32 | kFp16, kTwo, kAny, kFewSteps, at_most(112), at_least(24), at_most(2560)},
    {kGru, kFp16, kTwo, kAny, kFewSteps, at_most(64), at_least(90)},
    {kLstm, kFp32, kOne, kAny, kFewSteps, at_most(96)},
    {kLstm, kFp16, kOne, kAny, kFewSteps, at_most(119)},
    {kLstm, kFp32 | kFp16, kTwo, kAny, kFewSteps, at_most(96), at_least(24), at_most(2560)},
    {kRnn, kFp32, kOne, kAny, kFewSteps, at_most(136)},
    {kRnn, kFp16, kOne, kAny, kFewSteps, at_most(136), kAny, at_least(40)},
    // Fewer units than the tables were made of: sums of a long K and a few results, which no library product
    // splits well.
    {kAnyCell, kFp32 | kFp16, kAny, kAny, kFromFive, at_most(7)},
    // A wide input beside a small state: cuDNN multiplies both at once.
    {kGru, kFp32 | kFp16, kAny, kAny, at_least(5), at_most(60), at_least(19), kAny, at_least(80)},
    // One step: few launches of cuBLAS's small kernels.
    {kGru | kLstm, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, at_least(700)},
    {kGru | kLstm, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, kAny, at_least(16)},
    {kGru | kLstm, kFp16, kAny, kAny, kOne, at_least(193)},
    {kGru | kLstm, kFp16, kAny, kAny, kOne, at_most(56), at_least(17)},
    {kGru | kLstm, kBf16, kAny, kAny, kOne, kAny, {24, 64}, kAny, kAny, at_least(0.6)},
    {kGru | kLstm, kBf16, kAny, kAny, kOne, kAny, at_least(65)},
    {kGru, kBf16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(500)},
    {kLstm, kBf16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(300)},
    {kLstm, kBf16, kAny, kAny, kOne, kAny, at_least(10), kAny, kAny, at_least(1.2)},
    {kLstm, kBf16, kAny, kSeveral, kOne},
    {kLstm, kBf16, kOne, kAny, kOne, at_most(60), kAny, kAny, at_least(80)},
    {kGru | kLstm, kFp16, kOne, kSeveral, kOne, at_most(96)},
    {kLstm, kFp32, kOne, kSeveral, kOne, at_most(16)},
    {kRnn, kFp32, kOne, kAny, kOne, at_least(1024)},
    // A few.
    {kGru | kLstm, kAnyDtype, kAny, kAny, kTwo, kAny, kAny, kAny, at_least(1890)},
    {kGru, kBf16, kAny, kAny, kTwo, kAny, kAny, kAny, kAny, at_least(0.4)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 4}, at_most(42), at_least(25)},
    {kGru | kLstm, kBf16, kAny, kSeveral, {4, 6}, kAny, at_least(16), kAny, kAny, at_least(0.34)},
    {kLstm, kFp16, kTwo, kAny, {2, 4}, {57, 98}, at_least(17)},
    {kRnn, kAnyDtype, kAny, kAny, at_most(4), kAny, at_least(100)},
    {kRnn, kBf16, kTwo, at_least(3), kOne, kAny, at_least(48)},
    {kRnn, kBf16, kOne, at_least(3), kOne, at_most(16), at_least(64)},
    {kGru, kBf16, kOne, kAny, kOne, at_most(16), at_least(24)},
    {kRnn, k16Bits, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(2500)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(6000)},
    {kGru | kLstm, kFp32, kAny, kAny, kTwo, at_least(113), at_least(36)},
    {kGru | kLstm, kFp16, kAny, kAny, {2, 3}, at_least(190)},
    {kGru | kLstm, kFp16, kOne, kAny, {2, 3}, {113, 128}, at_least(48)},
    {kLstm, kFp16, kAny, kSeveral, {4, 4}, at_least(300)},
    {kLstm, kFp16, kOne, kAny, {4, 4}, {120, 128}, {80, 256}},
    {kGru | kLstm, kFp16, kAny, kAny, {4, 4}, at_least(129), kAny, kAny, kAny, at_least(13.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, kAny, kAny, kAny, kAny, at_least(0.56)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, {97, 128}},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, kAny, kAny, kAny, kAny, at_least(17.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, {65, 144}},
    {kGru | kLstm, k16Bits, kAny, kAny, {5, 9}, kAny, kAny, kAny, kAny, at_least(58)},
    {kGru | kLstm, k16Bits, kOne, kAny, {7, 24}, at_least(582), kAny, kAny, kAny, at_least(100)},
    {kRnn, kFp32, kOne, kSeveral, kTwo, {440, 512}, at_least(50)},
    // Stacks of four layers and more with many rows: of 35 three were below 0.95, and the median was 1.15. Of
    // three and more with a few steps: of 129 four, and 1.03; two steps in fp16: of 26 three, and 1.01.
    {kAnyCell, kAnyDtype, kOne, at_least(4), kAny, {257, 512}, at_least(64)},
    {kAnyCell, kAnyDtype, kOne, at_least(3), {2, 4}, at_least(129)},
    {kAnyCell, k16Bits, kAny, kSeveral, kTwo, at_least(129)},
    // T=3 B=62 I=32 H=5, two layers, both directions: 100 us, ours 105.
    {kRnn, kBf16, kTwo, kSeveral, {2, 4}, at_most(7), at_least(48)},
    // T=109, 256 rows of I=16, H=251, three layers in bf16: 5.4 ms, ours 5.8.
    without_vectors({kLstm, k16Bits, kOne, kSeveral, kAny, {193, 256}, at_least(128)}),
    // Of 2,400 random stacks on an H200 those that no other line takes. T=241, 121 rows of I = H = 213, two
    // layers of an RNN: 1,282 us, ours 1,769.
    without_vectors({kRnn, kFp16, kOne, kTwo, kAny, {209, 218}, at_least(100)}),
    {kGru, kFp16, kOne, kSeveral, at_least(200), {128, 128}, {65, 72}},
};

// Packed, all rows as long: padded already, and upstream's launches are as few as ours.
constexpr LayersInRanges kKeptOfEqualLengths[] = {
    {kAnyCell, kAnyDtype, kAny, kAny, at_most(4)},
};

// Packed, of several lengths: few steps with large products.
constexpr LayersInRanges kKeptPackedInTraining[] = {
    {kAnyCell, k16Bits, kAny, kAny, at_most(10), kAny, kAny, kAny, kAny, at_least(55)},
    {kAnyCell, k16Bits, kAny, kAny, at_most(16), kAny, kAny, kAny, kAny, at_least(55), kAny, at_least(4.5)},
    {kAnyCell, k16Bits, kAny, kSeveral, at_most(10), kAny, kAny, kAny, kAny, at_least(5)},
    without_vectors(
        {kLstm, k16Bits, kOne, kSeveral, {17, 24}, kAny, kAny, kAny, kAny, at_least(120), kAny, at_least(4)}),
    {kAnyCell, kBf16, kAny, kAny, at_most(9), kAny, kAny, kAny, kAny, at_least(8)},
    {kAnyCell, kFp32, kAny, kAny, at_most(7), kAny, kAny, kAny, kAny, at_least(9)},
    {kRnn, kFp32, kAny, kAny, at_most(12), kAny, kAny, at_least(1000), kAny, kAny, kAny, at_least(5)},
    // T=12 B=70 I=8 H=3, three layers: 297 us, ours 345.
    {kAnyCell, kAnyDtype, kAny, at_least(3), at_most(16), at_most(3), at_least(48)},
    // T=11 B=16 I = H = 1150, one row of eleven steps and the others of two: 186 us, ours 201.
    {kRnn, k16Bits, kOne, kAny, at_most(12), at_least(1025), kAny, kAny, kAny, at_least(40)},
};

// `saves`: whether the forward saves what its backward reads.
inline bool is_kept_in_training(const RnnProblem& problem, bool saves) {
  if (problem.sequence.is_packed()) {
    return is_in(kKeptPackedInTraining, problem);
  }
  if (problem.given_packed && is_in(kKeptOfEqualLengths, problem)) {
    return true;
  }
  return !problem.is_step_by_step() &&
         (is_in(kKeptInTraining, problem) ||
          (saves ? is_in(kKeptOfSaving, problem) : is_in(kKeptOfComputing, problem)));
}

// Whether the tables above say what cuDNN's kernels on the chip are worth, and not those of inference: where
// gradients follow.
inline bool is_judged_in_training(const RnnProblem& problem) {
  return problem.differentiated && problem.sequence.steps >= kSeveralTrainingSteps &&
         problem.hidden <= kJudgedHidden;
}

}  // namespace aten_ext::cuda
