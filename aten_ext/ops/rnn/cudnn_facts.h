// What was seen of cuDNN 9.19 on an H200, as data for the policy (plan.cpp); the figures are in
// docs/kernels/rnn.md. Standard library only.
#pragma once

#include <cstdint>

#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// Where cuDNN multiplies the state in TF32, if it may, seen by its error: above a hidden size in larger
// batches, from another on in all of two rows and more. By Cell. Up to the first of these sizes it has
// kernels of its own for small layers, in fp32 and fp16, whose first step is long.
struct CudnnTf32 {
  int64_t beyond_hidden, rows, any_rows_hidden;
};
constexpr CudnnTf32 kCudnnTf32[] = {{384, 17, 640}, {384, 17, 640}, {192, 17, 448}, {192, 20, 640}};

constexpr const CudnnTf32& cudnn_tf32(Cell cell) {
  return kCudnnTf32[static_cast<int>(cell)];
}

// Small layers that cuDNN keeps on the chip too: ours runs for so many rows, both directions counted, in
// sequences of up to kLongSteps steps and in longer ones; 0: never. Each up to a hidden size; there are no
// limits beyond the last.
constexpr int64_t kLongSteps = 64;
constexpr int64_t kShortSteps = 32;
struct KeptOnChip {
  int64_t hidden, rows, long_rows;
};
constexpr KeptOnChip kLstmFp32[] = {{56, 0, 0}, {64, 32, 8}, {84, 0, 0}, {96, 32, 0}, {112, 128, 0}};
constexpr KeptOnChip kLstmFp16[] = {{28, 0, 0}, {32, 64, 64}, {56, 0, 0},   {64, 32, 8},
                                    {84, 0, 0}, {96, 32, 0},  {112, 128, 0}};
constexpr KeptOnChip kRnnFp32[] = {{92, 0, 0},  {112, 32, 0}, {128, 32, 32},
                                   {144, 0, 0}, {176, 8, 0},  {192, 16, 16}};
constexpr KeptOnChip kRnnFp16[] = {{28, 0, 0},   {32, 64, 64},  {56, 0, 0},  {64, 64, 8}, {92, 0, 0},
                                   {112, 64, 0}, {128, 64, 32}, {144, 8, 0}, {176, 8, 0}, {192, 16, 16}};
// fp16 where rows and hidden size are multiples of eight: cuDNN takes other kernels, which are slower.
constexpr KeptOnChip kRnnFp16OfEight[] = {{128, 1 << 30, 1 << 30}, {256, 128, 128}};

template <int kCount>
constexpr bool is_kept_on_chip(const KeptOnChip (&table)[kCount], int64_t hidden, int64_t rows,
                               int64_t steps) {
  for (const KeptOnChip& entry : table) {
    if (hidden <= entry.hidden) {
      return rows > (steps > kLongSteps ? entry.long_rows : entry.rows);
    }
  }
  return false;
}

// A layer of a GRU: long sequences of few rows just above H = 64.
constexpr bool is_kept_gru(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  return problem.hidden > 64 && problem.hidden <= 96 && sequence.batch * problem.directions <= 16 &&
         sequence.steps > 32;
}

// A short sequence of a small GRU in fp32: cuDNN takes 10 us, its GEMM included, ours 11 to 14 in inference.
constexpr bool is_small_gru(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  return problem.cell == Cell::Gru && problem.dtype == Dtype::Float && problem.directions == 1 &&
         !problem.train && problem.hidden >= 14 && problem.hidden <= 36 && sequence.batch > 8 &&
         sequence.steps >= 2 && sequence.steps <= kShortSteps;
}

// fp16: one layer and direction of whole tiles, for which PyTorch asks cuDNN for its persistent kernel of
// large layers. An LSTM's 16 rows are one tile of it.
constexpr bool is_static_lstm(const RnnProblem& problem) {
  return problem.cell == Cell::Lstm && problem.dtype == Dtype::Half && problem.layers == 1 &&
         problem.directions == 1 && problem.sequence.batch == 16 && problem.hidden % 128 == 0 &&
         problem.sequence.features % 128 == 0 && problem.hidden >= 896 && problem.hidden <= 1024;
}

// LSTM and RNN of two directions and not many rows: upstream takes twice as long, ours does not.
constexpr bool runs_beside(const RnnProblem& problem) {
  return problem.directions == 2 && problem.sequence.batch <= 64;
}

// Two to four steps of a small LSTM or RNN: one launch of cuDNN's takes 6 to 8 us.
constexpr bool is_kept_for_few_steps(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  if (problem.dtype == Dtype::BFloat16 || problem.cell == Cell::Gru || sequence.steps < 2 ||
      sequence.steps > 4 || runs_beside(problem)) {
    return false;
  }
  if (problem.cell == Cell::Lstm) {
    return problem.hidden <= 60;
  }
  return problem.hidden <= 80 ||
         (problem.hidden <= 128 && problem.dtype == Dtype::Float && sequence.batch > 4);
}

// Whether upstream was seen to be as fast because it has a persistent kernel too.
constexpr bool is_kept_on_chip(const RnnProblem& problem) {
  if (problem.dtype == Dtype::BFloat16) {
    return false;
  }
  if (problem.cell == Cell::Gru) {
    return is_kept_gru(problem);
  }
  if (runs_beside(problem)) {
    return false;
  }
  const int64_t hidden = problem.hidden;
  const int64_t rows = problem.sequence.batch * problem.directions;
  const int64_t steps = problem.sequence.steps;
  const bool lstm = problem.cell == Cell::Lstm;
  if (problem.dtype == Dtype::Float) {
    return lstm ? is_kept_on_chip(kLstmFp32, hidden, rows, steps)
                : is_kept_on_chip(kRnnFp32, hidden, rows, steps);
  }
  if (problem.sequence.batch % 8 == 0 && hidden % 8 == 0) {
    return lstm ? is_static_lstm(problem) : is_kept_on_chip(kRnnFp16OfEight, hidden, rows, steps);
  }
  return lstm ? is_kept_on_chip(kLstmFp16, hidden, rows, steps)
              : is_kept_on_chip(kRnnFp16, hidden, rows, steps);
}

// Whether upstream's first step is so long that all of ours is shorter: fp32, where it takes 42 us.
constexpr bool has_long_first_step(const RnnProblem& problem) {
  if (problem.dtype != Dtype::Float || problem.cell == Cell::Gru) {
    return false;
  }
  const int64_t from = problem.cell == Cell::Lstm ? 112 : 192;
  return problem.hidden > from && problem.hidden <= cudnn_tf32(problem.cell).beyond_hidden;
}

}  // namespace aten_ext::cuda
