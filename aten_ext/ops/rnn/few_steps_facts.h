// Sequences of few steps that cuDNN 9.19 runs in less of the GPU's time, as data for the policy (plan.cpp);
// the figures are in docs/kernels/rnn.md. Standard library only.
#pragma once

#include "ops/rnn/cudnn_facts.h"
#include "ops/rnn/layers_in_ranges.h"

namespace aten_ext::cuda {

// In inference a short sequence of a small GRU takes cuDNN 10 us, its GEMM included, ours 11 to 14.
constexpr LayersInRanges kKeptInInference[] = {
    {kGru, kFp32, kOne, kAny, {2, 32}, {14, 36}, at_least(7)},
    {kGru, kFp32, kOne, at_least(3), {9, 14}, {265, 288}, at_least(48)},
};

// Up to four steps: one launch of cuDNN's takes 6 to 8 us.
constexpr LayersInRanges kKeptForFewSteps[] = {
    {kLstm, kFp32 | kFp16, kOne, kAny, {2, 4}, at_most(60)},
    {kLstm, kFp32 | kFp16, kTwo, kAny, {2, 4}, at_most(60), at_least(kRowsOfTwoDirections)},
    {kRnn, kFp32 | kFp16, kOne, kAny, {2, 4}, at_most(80)},
    {kRnn, kFp32 | kFp16, kTwo, kAny, {2, 4}, at_most(80), at_least(kRowsOfTwoDirections)},
    {kRnn, kFp32, kOne, kAny, {2, 4}, at_most(128), at_least(5)},
    {kRnn, kFp32, kTwo, kAny, {2, 4}, at_most(128), at_least(kRowsOfTwoDirections)},
    // A GRU of many rows: two layers of four steps 23 us, ours 28.
    {kGru, kFp16, kOne, kAny, {2, 4}, at_most(96), at_least(150)},
    // Many rows in fp16: three layers of one step of 458 rows 28 us, ours 33; two steps of 336 rows 5 % less.
    {kGru, kFp16, kAny, kSeveral, kOne, kAny, at_least(256)},
    {kLstm, kFp16, kAny, kAny, {2, 3}, kAny, at_least(256)},
};

// The same of a forward without gradients, where ours has a launch for each step, or loads its weights into
// registers for a few: of 16,000 random calls on an H100 those that the other rules take and that upstream
// runs in less time, with as little as could be beside them.
constexpr LayersInRanges kKeptWithoutGradients[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows, weights, products
    without_vectors({kGru, kFp16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(850), at_least(19)}),
    {kGru, kFp16, kOne, kAny, kOne, at_least(250), kAny, kAny, kAny, at_least(55)},
    {kGru, kFp16, kAny, kAny, kOne, at_least(1150)},
    // B=256 I=13 H=256: 15 us, ours 18.
    without_vectors({kGru, kFp16, kTwo, kAny, kOne, kAny, kAny, kAny, at_most(250), at_least(50)}),
    without_vectors({kGru, kFp16, kAny, kAny, kTwo, kAny, kAny, kAny, at_least(900), at_least(26)}),
    without_vectors({kGru, kFp16, kAny, kAny, kTwo, kAny, kAny, kAny, kAny, at_least(50)}),
    {kGru, kFp16, kAny, kAny, kTwo, at_least(640), kAny, kAny, kAny, at_least(13)},
    {kGru, kFp16, kAny, kAny, kTwo, kAny, at_least(100), kAny, kAny, at_least(80)},
    without_vectors({kGru, kFp16, kAny, kAny, {3, 3}, at_least(280), kAny, kAny, kAny, at_least(14)}),
    {kGru, kFp16, kOne, kAny, {3, 3}, {65, 88}, at_least(10)},
    {kGru, kFp16, kAny, kAny, {3, 3}, kAny, kAny, kAny, at_least(1990), at_least(9)},
    without_vectors({kGru, kFp16, kAny, kAny, {4, 4}, kAny, kAny, kAny, at_least(890), at_least(4.3)}),
    {kGru, kFp16, kAny, kAny, {4, 4}, kAny, kAny, kAny, at_least(2200), at_least(5)},
    {kGru, kFp16, kAny, kSeveral, {4, 4}, kAny, kAny, kAny, kAny, at_least(50)},
    {kGru, kFp16, kTwo, kAny, {3, 3}, kAny, kAny, kAny, kAny, at_least(45)},
    without_vectors({kGru, kBf16, kAny, kAny, {3, 4}, kAny, kAny, kAny, kAny, at_least(23)}),
    {kLstm, kFp16, kOne, kAny, kOne, kAny, at_least(65), kAny, kAny, at_least(72)},
    {kLstm, kFp16, kTwo, kAny, kOne, kAny, at_least(200), kAny, kAny, at_least(45)},
    {kLstm, kFp16, kAny, kAny, kOne, at_least(1180)},
    {kLstm, kFp16, kAny, kAny, kTwo, kAny, kAny, kAny, kAny, at_least(58)},
    {kLstm, kFp16, kOne, kAny, {3, 3}, {61, 96}, at_least(13)},
    {kLstm, kFp16, kAny, kAny, {3, 3}, kAny, at_least(80), kAny, kAny, at_least(40)},
    {kLstm, kFp16, kTwo, kAny, {3, 3}, kAny, kAny, kAny, kAny, at_least(45)},
    without_vectors({kLstm, kFp16, kAny, kAny, kTwo, kAny, kAny, kAny, kAny, at_least(40)}),
    {kLstm, kFp16, kTwo, kAny, {3, 3}, kAny, kAny, kAny, at_least(3200)},
    {kLstm, kFp16, kAny, kAny, {4, 4}, at_least(401), kAny, kAny, kAny, at_least(6.5)},
    {kLstm, kFp16, kAny, kAny, {4, 4}, {257, 400}, kAny, kAny, kAny, at_least(45)},
    {kLstm | kRnn, kFp16, kOne, kAny, {5, 6}, at_most(40)},
    {kLstm, kFp16, kOne, kAny, {4, 4}, {61, 88}, at_least(13)},
    {kLstm, kFp16, kOne, kAny, kOne, at_least(553), at_least(17), kAny, kAny, at_least(51)},
    without_vectors({kRnn, kFp16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(780), at_least(21)}),
    {kRnn, kFp16, kAny, kAny, kOne, kAny, kAny, kAny, at_least(2290), at_least(97)},
    {kRnn, kFp16, kTwo, kAny, {3, 4}, kAny, kAny, kAny, at_least(1200)},
    {kRnn, kFp16, kAny, kAny, {4, 4}, kAny, kAny, kAny, at_least(660), at_least(19)},
    {kRnn, kFp16, kAny, kAny, kTwo, {513, 620}, kAny, kAny, kAny, at_least(40)},
    {kRnn, kBf16, kAny, kAny, {4, 4}, kAny, kAny, kAny, kAny, at_least(70)},
    {kRnn, kFp16, kAny, kAny, {4, 4}, kAny, kAny, kAny, kAny, at_least(110)},
    {kRnn, kFp16, kOne, kAny, {4, 4}, {81, 128}, at_least(64)},
    {kRnn, kFp16, kOne, kAny, kOne, kAny, at_least(65), kAny, kAny, at_least(80)},
    {kGru, kFp32, kAny, kAny, kTwo, {225, 512}, at_least(22)},
    {kGru, kFp32, kAny, at_least(3), kTwo, {512, 512}, at_least(18)},
    without_vectors({kGru, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, kAny, at_least(20)}),
    without_vectors({kLstm, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, kAny, at_least(20)}),
    {kGru, kFp32, kAny, kSeveral, {3, 3}, {231, 512}, at_least(16)},
    {kGru, kFp32, kOne, kAny, {3, 3}, {257, 512}, kAny, kAny, kAny, at_least(100)},
    {kGru, kFp32, kAny, kSeveral, {4, 4}, {257, 352}, at_least(30)},
    without_vectors({kGru, kFp32, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(980), at_least(5)}),
    without_vectors({kGru, kFp32, kAny, kAny, {4, 4}, kAny, kAny, kAny, at_least(2000), at_least(4)}),
    without_vectors({kGru, kFp32, kAny, kAny, {3, 3}, {385, 480}, at_least(5)}),
    {kGru, kFp32, kAny, kSeveral, {4, 4}, kAny, kAny, kAny, at_least(700), at_least(6)},
    {kGru, kFp32, kAny, kAny, {4, 4}, kAny, kAny, kAny, at_least(1200), at_least(4.5)},
    {kGru, kFp32, kAny, kAny, {2, 4}, kAny, kAny, kAny, at_least(6000)},
    {kGru, kFp32, kTwo, kAny, kOne, kAny, kAny, kAny, kAny, at_least(50)},
    {kGru, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, {3000, 5000}, at_least(70)},
    {kGru, kFp32, kOne, kSeveral, {2, 3}, {385, 480}, at_least(5)},
    {kLstm, kFp32, kAny, kSeveral, kTwo, {257, 384}},
    {kLstm, kFp32, kTwo, kAny, kTwo, {257, 384}, at_least(14)},
    {kLstm, kFp32, kOne, kAny, kTwo, {193, 256}, at_least(35)},
    {kLstm, kFp32, kAny, kSeveral, {3, 3}, {225, 384}, at_least(20)},
    {kLstm, kFp32, kOne, kSeveral, {4, 4}, {257, 384}, at_least(40)},
    {kLstm, kFp32, kTwo, kAny, {4, 4}, {257, 384}, at_least(23)},
    {kLstm, kFp32, kAny, kSeveral, {4, 4}, {385, 512}, at_least(4)},
    {kLstm, kFp32, kAny, kAny, kOne, at_least(530), at_least(17), kAny, at_least(1900)},
    {kLstm, kFp32, kAny, kAny, kOne, kAny, at_least(5), kAny, at_least(10000)},
    {kLstm, kFp32, kAny, kAny, {3, 3}, kAny, kAny, kAny, at_least(2000), at_least(35)},
    {kLstm, kFp32, kOne, kAny, kTwo, {257, 384}, at_least(33)},
    {kLstm, kFp32, kOne, kAny, {3, 3}, {257, 384}, at_least(64)},
    // T=4 B=105 I = H = 320: 40 us, ours 45.
    {kLstm, kFp32, kOne, kAny, {4, 4}, {257, 384}, at_least(96)},
    {kLstm, kFp32, kTwo, kAny, kTwo, {193, 384}, at_least(25)},
    {kRnn, kFp32, kAny, kAny, kOne, at_least(1030), kAny, kAny, kAny, at_least(5)},
    {kRnn, kFp32, kAny, kAny, kTwo, at_least(1030), kAny, kAny, at_least(2100)},
    without_vectors({kRnn, kFp32, kOne, kAny, {3, 3}, {90, 130}, at_least(3)}),
    {kRnn, kFp32, kAny, kAny, kOne, kAny, kAny, kAny, kAny, at_least(54)},
    {kGru, kFp16, kAny, kAny, kOne, at_least(1100), at_least(2)},
    {kGru, kFp16, kTwo, kSeveral, kTwo, at_least(640), kAny, kAny, kAny, at_least(9.5)},
    {kGru, kFp16, kAny, at_least(3), {3, 3}, kAny, kAny, kAny, at_least(1200), at_least(5)},
    {kGru, kFp16, kAny, at_least(3), {4, 4}, kAny, kAny, kAny, at_least(1500), at_least(10)},
    {kLstm, kFp16, kAny, kAny, kOne, at_least(1090), at_least(4)},
    without_vectors({kLstm, kFp16, kAny, kAny, kOne, at_least(1090), at_least(2)}),
    without_vectors({kLstm, kFp16, kAny, kSeveral, kTwo, kAny, at_least(8), kAny, at_least(1700)}),
    without_vectors({kGru, kFp16, kAny, kSeveral, kTwo, kAny, kAny, kAny, at_least(900), at_least(15)}),
    without_vectors({kLstm, kFp16, kAny, kSeveral, {4, 4}, kAny, kAny, kAny, at_least(1700), at_least(5)}),
    {kLstm, kFp32, kOne, kAny, kOne, kAny, at_least(2), kAny, at_least(19000)},
    without_vectors({kLstm, kFp32, kOne, kSeveral, kOne, kAny, at_least(2), kAny, {5300, 6100}}),
    without_vectors({kRnn, kFp32, kTwo, kAny, kOne, kAny, at_least(4), kAny, at_least(1100)}),
    without_vectors({kRnn, kFp32, kTwo, kSeveral, kOne, kAny, at_least(2), kAny, {1100, 3000}}),
    without_vectors({kRnn, kFp32, kAny, kSeveral, kTwo, kAny, kAny, kAny, kAny, at_least(3)}),
    without_vectors({kRnn, kFp32, kAny, at_least(3), {4, 4}, at_least(440)}),
    {kRnn, kFp32, kOne, at_least(3), {4, 4}, {840, 900}, at_least(4)},
    without_vectors({kRnn, kFp16, kTwo, kAny, kOne, kAny, kAny, kAny, at_least(1500), at_least(12)}),
    without_vectors({kRnn, kFp16, kAny, kAny, {3, 3}, at_least(1400)}),
    without_vectors({kGru, kFp16, kAny, kAny, kTwo, at_least(250), kAny, kAny, kAny, at_least(35)}),
    {kGru, kFp16, kAny, kAny, {4, 4}, at_least(701), kAny, kAny, kAny, at_least(38)},
    {kGru, kFp16, kAny, kAny, {3, 3}, kAny, kAny, kAny, at_least(4000), at_least(8.5)},
    without_vectors({kGru, kFp32, kTwo, kSeveral, kOne, kAny, kAny, kAny, kAny, at_least(14)}),
    {kGru, kFp32, kOne, kOne, kTwo, {257, 512}, kAny, kAny, at_least(1700), at_least(13)},
    without_vectors({kRnn, kFp32, kAny, kAny, kOne, at_least(1030), kAny, kAny, kAny, at_least(4.6)}),
    {kRnn, kFp32, kAny, kSeveral, kTwo, {440, 512}, at_least(50)},
    // 41 rows of I = H = 556, five layers: 64 us, ours 80. Twelve rows of H = 341, five of an LSTM: 90
    // us, 92.
    without_vectors({kRnn, kFp16, kOne, kSeveral, kTwo, at_least(440), at_least(20)}),
    // More steps, 0.87 to 0.97 of upstream's speed; and 0.83 with 990 features, H = 1096 and three rows.
    {kLstm, kFp16, kAny, kAny, {5, 13}, {513, 640}, {81, 104}},
    {kLstm, kFp16, kOne, at_least(3), {5, 13}, {513, 640}, at_least(45)},
    // T=6 B=288 I=64 H=64, two layers: 24 us, ours 37.
    {kLstm, kFp16, kOne, kAny, {5, 8}, {57, 96}, at_least(128)},
    without_vectors({kGru, kBf16, kAny, kAny, {4, 4}, at_least(1025), {3, 4}}),
    // T=5 B=6 I=11 H=388, three layers of an LSTM: 71 us, ours 81.
    {kAnyCell, kFp32, kOne, at_least(3), {5, 5}, {385, 640}, {5, 12}},
    // T=6 B=24 I=64 H=439, four layers of an LSTM: 167 us, ours 234. T=3 B=41 I=64 H=414, five layers and two
    // directions of an RNN: 182 us, ours 241.
    {kLstm, kFp32, kOne, at_least(4), {6, 6}, {400, 450}, {9, 40}},
    without_vectors({kRnn, kFp32, kTwo, at_least(4), {3, 4}, {385, 512}, at_least(32)}),
    {kGru, kFp32, kOne, kSeveral, {5, 5}, {760, 780}, at_least(33)},
    // Stacks of a few steps: cuDNN has layers beside one another in most of them. Of 178 in fp32 and fp16
    // seven were below 0.95, the least 0.79, and the median was 1.3.
    {kAnyCell, kFp32 | kFp16, kOne, at_least(4), {2, 5}, at_least(257)},
    // T=2 B=20 I = H = 394, two layers: 34 us, ours 38. T=4 B=192 I = H = 208, three of an RNN: 37 us, 42.
    {kLstm, kFp16, kOne, kSeveral, kTwo, at_least(257)},
    {kRnn, kFp16, kOne, at_least(3), {2, 4}, {129, 256}, at_least(128)},
    // 407 rows of I = H = 512, two layers: 36 us, ours 38; 163 rows of H = 470, both directions: 58 us, 62.
    {kRnn, kFp16, kAny, kSeveral, kTwo, at_least(257), at_least(96)},
    // T=1 B=221 I=512 H=13: 7.9 us, ours 9.2.
    without_vectors({kLstm, kFp16, kAny, kAny, kOne, at_most(31), at_least(128)}),
    // T=3 B=2 I=128 H=630, three layers: 63 us, ours 74.
    {kGru, kFp32, kOne, at_least(3), {2, 5}, {513, 1024}, at_most(8)},
};

// Of many steps, in a graph alone: from Python upstream's launches take longer than either. Three rows of
// H = 1096 take upstream 10.3 us a step, ours 11.3; of I=256, H=1888 23.4, ours 26.5 (two others 1.06
// and 1.07).
constexpr LayersInRanges kKeptInGraphs[] = {
    {kLstm, kFp32, kOne, kAny, at_least(10), at_least(1025), {3, 3}},
};

// Packed, all rows as long. Upstream takes none of its persistent kernels for it, and a launch for each step.
constexpr LayersInRanges kKeptOfEqualSteps[] = {
    {kAnyCell, kFp16, kAny, kAny, {2, 4}, kAny, kAny, kAny, kAny, at_least(15)},
};

inline bool is_kept_for_few_steps(const RnnProblem& problem) {
  return is_in(kKeptForFewSteps, problem) || (!problem.train && is_in(kKeptInInference, problem));
}

inline bool is_kept_in_graphs(const RnnProblem& problem) {
  return problem.captured && !problem.differentiated && !problem.is_step_by_step() &&
         is_in(kKeptInGraphs, problem);
}

inline bool is_kept_without_gradients(const RnnProblem& problem) {
  return !problem.differentiated &&
         (problem.is_step_by_step() ? !problem.sequence.is_packed() && is_in(kKeptOfEqualSteps, problem)
                                    : is_in(kKeptWithoutGradients, problem));
}

}  // namespace aten_ext::cuda
