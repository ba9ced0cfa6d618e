// Where upstream trains a layer in less of the GPU's time than we do, as data for the policy (plan.cpp),
// which asks where launches do not decide (launch_bound.h): cuDNN 9.19 on an H200, 6,400 random calls;
// figures are in docs/kernels/rnn.md. Standard library only.
#pragma once

#include "ops/rnn/layers_in_ranges.h"

namespace aten_ext::cuda {

constexpr LayersInRanges kKeptInTraining[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows, weights, products
    // cuDNN keeps the layer on the chip; of two directions ours run at once.
    {kGru, kFp32, kOne, kAny, kSeveral, at_most(112), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(124), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(124), at_most(100)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(20)},
    {kGru, kFp16, kOne, kAny, {2, 24}, {120, 128}, at_most(100)},
    {kGru, kFp16, kOne, kAny, at_least(25), {125, 128}},
    {kGru, kFp32 | kFp16, kTwo, kAny, kSeveral, at_most(112), at_least(24), at_most(2560)},
    {kGru, kFp16, kTwo, kAny, kSeveral, at_most(64), at_least(90)},
    {kLstm, kFp32, kOne, kAny, kSeveral, at_most(96)},
    {kLstm, kFp16, kOne, kAny, kSeveral, at_most(98)},
    {kLstm, kFp16, kOne, kAny, {2, 9}, {99, 119}},
    {kLstm, kFp32 | kFp16, kTwo, kAny, kSeveral, at_most(96), at_least(24), at_most(2560)},
    {kRnn, kFp32, kOne, kAny, kSeveral, at_most(136)},
    {kRnn, kFp16, kOne, kAny, kSeveral, at_most(136), kAny, at_least(40)},
    {kGru, kFp16, kTwo, kAny, at_least(25), at_most(20), at_least(24)},
    {kAnyCell, kFp32 | kFp16, kTwo, kAny, {5, 28}, at_most(42), {8, 23}},
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
    // A few.
    {kGru | kLstm, kAnyDtype, kAny, kAny, kTwo, kAny, kAny, kAny, at_least(1890)},
    {kGru, kBf16, kAny, kAny, kTwo, kAny, kAny, kAny, kAny, at_least(0.4)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 4}, at_most(42), at_least(25)},
    {kGru | kLstm, kBf16, kAny, kSeveral, {4, 6}, kAny, at_least(16), kAny, kAny, at_least(0.34)},
    {kLstm, kFp16, kTwo, kAny, {2, 4}, {57, 98}, at_least(17)},
    {kRnn, kAnyDtype, kAny, kAny, at_most(4), kAny, at_least(100)},
    {kRnn, kBf16, kTwo, at_least(3), kOne, kAny, at_least(48)},
    {kRnn, k16Bits, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(2500)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(6000)},
    {kGru | kLstm, kFp32, kAny, kAny, kTwo, at_least(113), at_least(36)},
    {kGru | kLstm, kFp16, kAny, kAny, {2, 3}, at_least(190)},
    {kGru | kLstm, kFp16, kOne, kAny, {2, 3}, {113, 128}, at_least(48)},
    {kLstm, kFp16, kAny, kSeveral, {4, 4}, at_least(300)},
    {kGru | kLstm, kFp16, kAny, kAny, {4, 4}, at_least(129), kAny, kAny, kAny, at_least(13.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, kAny, kAny, kAny, kAny, at_least(0.56)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, {97, 128}},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, kAny, kAny, kAny, kAny, at_least(17.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, {65, 144}},
    {kGru | kLstm, k16Bits, kAny, kAny, {5, 9}, kAny, kAny, kAny, kAny, at_least(58)},
    {kGru | kLstm, k16Bits, kOne, kAny, {7, 24}, at_least(582), kAny, kAny, kAny, at_least(100)},
};

// Packed, all rows as long: padded already, and upstream's launches are as few as ours.
constexpr LayersInRanges kKeptOfEqualLengths[] = {
    {kAnyCell, kAnyDtype, kAny, kAny, at_most(4)},
};

// Packed, of several lengths: padding makes more of large products.
constexpr LayersInRanges kKeptPackedInTraining[] = {
    {kAnyCell, k16Bits, kAny, kAny, at_most(10), kAny, kAny, kAny, kAny, at_least(55)},
    {kAnyCell, k16Bits, kAny, kAny, kAny, kAny, kAny, kAny, kAny, at_least(55), kAny, at_least(4.5)},
    {kAnyCell, k16Bits, kAny, kSeveral, at_most(10), kAny, kAny, kAny, kAny, at_least(5)},
    {kAnyCell, kBf16, kAny, kAny, at_most(9), kAny, kAny, kAny, kAny, at_least(8)},
    {kAnyCell, kFp32, kAny, kAny, at_most(7), kAny, kAny, kAny, kAny, at_least(9)},
};

inline bool is_kept_in_training(const RnnProblem& problem) {
  if (problem.sequence.is_packed()) {
    return is_in(kKeptPackedInTraining, problem);
  }
  if (problem.given_packed && is_in(kKeptOfEqualLengths, problem)) {
    return true;
  }
  // Of several packed steps upstream takes none of its persistent kernels.
  const bool padded = !problem.given_packed || problem.sequence.steps == 1;
  return padded && is_in(kKeptInTraining, problem);
}

}  // namespace aten_ext::cuda
