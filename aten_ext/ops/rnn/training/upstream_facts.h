// Where upstream trains a padded layer in less of the GPU's time than we do, as data for the policy
// (plan.cpp): cuDNN 9.19 on an H200, 4,790 random calls; figures are in docs/kernels/rnn.md. Standard library
// only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>

#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

struct Range {
  double least = 0.0;
  double most = std::numeric_limits<double>::infinity();

  constexpr bool has(double value) const {
    return least <= value && value <= most;
  }
};

constexpr int kGru = 1, kLstm = 2, kRnn = 4;
constexpr int kFp32 = 1, kFp16 = 2, kBf16 = 4;

// Calls that are in all of its ranges.
struct KeptInTraining {
  int cells, dtypes;
  Range directions{}, layers{}, steps{}, hidden{}, batch{}, rows{};
  Range weights{};   // thousands, of a direction of the widest layer
  Range products{};  // millions of multiply-adds of one of its steps
};

constexpr Range at_least(double least) {
  return {least};
}
constexpr Range at_most(double most) {
  return {0.0, most};
}
constexpr Range kAny{};
constexpr Range kOne{1.0, 1.0};
constexpr Range kTwo{2.0, 2.0};
constexpr Range kSeveral{2.0};

constexpr KeptInTraining kKeptInTraining[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows, weights, products
    // cuDNN keeps the layer on the chip; of two directions ours run at once.
    {kGru, kFp32, kOne, kAny, kSeveral, at_most(112), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(124), kAny, at_most(2560)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(124), at_most(100)},
    {kGru, kFp16, kOne, kAny, kSeveral, at_most(20)},
    {kGru, kFp16, kOne, kAny, at_least(25), {125, 128}},
    {kGru, kFp32 | kFp16, kTwo, kAny, kSeveral, at_most(112), at_least(24), at_most(2560)},
    {kGru, kFp16, kTwo, kAny, kSeveral, at_most(64), at_least(90)},
    {kLstm, kFp32, kOne, kAny, kSeveral, at_most(96)},
    {kLstm, kFp16, kOne, kAny, kSeveral, at_most(98)},
    {kLstm, kFp16, kOne, kAny, {2, 9}, {99, 119}},
    {kLstm, kFp32 | kFp16, kTwo, kAny, kSeveral, at_most(96), at_least(24), at_most(2560)},
    {kRnn, kFp32, kOne, kAny, kSeveral, at_most(136)},
    {kRnn, kFp16, kOne, kAny, kSeveral, at_most(136), kAny, at_least(40)},
    // One step: few launches of cuBLAS's small kernels.
    {kGru | kLstm, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, kAny, at_least(16)},
    {kGru | kLstm, kFp16, kAny, kAny, kOne, at_least(193)},
    {kGru | kLstm, kFp16, kAny, kAny, kOne, at_most(56), at_least(17)},
    {kGru | kLstm, kBf16, kAny, kAny, kOne, kAny, {24, 64}, kAny, kAny, at_least(0.6)},
    {kGru | kLstm, kBf16, kAny, kAny, kOne, kAny, at_least(65)},
    {kGru, kBf16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(500)},
    {kLstm, kBf16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(300)},
    {kLstm, kBf16, kAny, kSeveral, kOne},
    // A few.
    {kRnn, kFp32 | kFp16 | kBf16, kAny, kAny, at_most(4), kAny, at_least(121)},
    {kGru | kLstm, kFp32, kAny, kAny, kTwo, at_least(113), at_least(36)},
    {kGru | kLstm, kFp16, kAny, kAny, {2, 3}, at_least(190)},
    {kGru | kLstm, kFp16, kOne, kAny, {2, 3}, {113, 128}, at_least(48)},
    {kLstm, kFp16, kAny, kSeveral, {4, 4}, at_least(300)},
    {kGru | kLstm, kFp16, kAny, kAny, {4, 4}, at_least(129), kAny, kAny, kAny, at_least(13.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, kAny, kAny, kAny, kAny, at_least(0.56)},
    {kGru | kLstm, kBf16, kAny, kAny, {2, 3}, {97, 128}},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, kAny, kAny, kAny, kAny, at_least(17.5)},
    {kGru | kLstm, kBf16, kAny, kAny, {4, 4}, {65, 144}},
    {kGru | kLstm, kFp16 | kBf16, kAny, kAny, {5, 9}, kAny, kAny, kAny, kAny, at_least(58)},
};

// One step of so few rows is called in a loop, as reinforcement learning and decoders do it, and takes longer
// to launch than to run, upstream's three times as long: launches decide. Not in fp16, where upstream runs in
// 20 us what takes us 35.
constexpr int64_t kRowsOfLoops = 16;

inline bool is_kept_in_training(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  if (sequence.steps == 1 && sequence.batch <= kRowsOfLoops && problem.dtype != Dtype::Half) {
    return false;
  }
  const int cell = problem.cell == Cell::Gru ? kGru : problem.cell == Cell::Lstm ? kLstm : kRnn;
  const int dtype = problem.dtype == Dtype::Float ? kFp32 : problem.dtype == Dtype::Half ? kFp16 : kBf16;
  const double weights = static_cast<double>(problem.gates() * problem.hidden) *
                         static_cast<double>(problem.input() + problem.hidden);
  const auto batch = static_cast<double>(sequence.batch);
  return std::any_of(std::begin(kKeptInTraining), std::end(kKeptInTraining), [&](const KeptInTraining& kept) {
    return (kept.cells & cell) != 0 && (kept.dtypes & dtype) != 0 &&
           kept.directions.has(problem.directions) && kept.layers.has(problem.layers) &&
           kept.steps.has(static_cast<double>(sequence.steps)) &&
           kept.hidden.has(static_cast<double>(problem.hidden)) && kept.batch.has(batch) &&
           kept.rows.has(static_cast<double>(sequence.steps) * batch) && kept.weights.has(weights / 1e3) &&
           kept.products.has(batch * weights / 1e6);
  });
}

}  // namespace aten_ext::cuda
