// A call's sizes as the policy compares them, and the rules that its files share. Standard library only.
#pragma once

#include <cstdint>

#include "ops/rnn/cudnn_facts.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// Up to this hidden size a block alone runs a recurrence.
constexpr int64_t kBlockHidden = 128;

struct Sizes {
  const RnnProblem& problem;
  bool sixteen_bits;
  bool tf32_allowed;                    // and H is a multiple of four
  int64_t steps, batch, input, hidden;  // input: of the layer with the most features
  int directions;
};

// Whether the recurrence may be in TF32 without being less accurate than upstream's.
inline bool is_tf32_recurrence(const Sizes& sizes) {
  return sizes.tf32_allowed && has_tf32_state(sizes.problem.cell, sizes.batch, sizes.hidden);
}

// Whether a launch for each step is best (Route::Step), and whether its products are in TF32.
bool plan_steps(const Sizes& sizes, bool& tf32);

// Whether one launch after a GEMM, where there is a kernel, is shorter all the same.
bool is_shorter_in_one_launch(const RnnProblem& problem);

}  // namespace aten_ext::cuda
