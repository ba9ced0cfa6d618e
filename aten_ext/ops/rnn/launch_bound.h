// Layers whose launches take longer than they run: from Python upstream needs 65 us and more for a short
// layer in inference and 750 in training, ours 26 and 300. Figures: docs/kernels/rnn.md.
#pragma once

#include "core/gpu.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// In inference and in training: steps of all layers, and millions of multiply-adds of all of them for each
// multiprocessor, up to which ours takes at most 60 and 300 us of an H200's time, forward and backward
// together.
struct LaunchBound {
  double steps;
  double products;
};
constexpr LaunchBound kLaunchBound[2] = {{32, 2.2}, {40, 6}};

// Whether launches decide which side is faster, and not the GPU's time, which is all that a graph's replays
// take.
inline bool is_launch_bound(const RnnProblem& problem, const Gpu& gpu) {
  const Sequence& sequence = problem.sequence;
  const double steps = static_cast<double>(sequence.steps) * problem.layers;
  const double weights = static_cast<double>(problem.gates() * problem.hidden) *
                         static_cast<double>(problem.input() + problem.hidden) * problem.directions;
  const LaunchBound& most = kLaunchBound[problem.train];
  return !problem.captured && steps <= most.steps &&
         steps * static_cast<double>(sequence.batch) * weights / 1e6 <= most.products * gpu.multiprocessors;
}

}  // namespace aten_ext::cuda
