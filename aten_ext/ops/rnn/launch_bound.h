// Layers whose launches take longer than they run: from Python upstream needs 65 us and more for a short
// layer in inference and 570 with gradients; ours 26 and 350. Figures: docs/kernels/rnn.md.
#pragma once

#include "core/gpu.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// In inference, in training mode without gradients, and with them: steps of all layers, and millions of
// multiply-adds of all of them for each multiprocessor. Up to the first ours takes at most 60 us of an H200's
// time, up to the second 300 with a backward, and up to the last two fifths of upstream's time from Python.
struct LaunchBound {
  double steps;
  double products;
};
constexpr LaunchBound kLaunchBound[3] = {{32, 2.2}, {40, 6}, {200, 12}};

// Whether launches decide which side is faster, and not the GPU's time, which is all that a graph's replays
// take.
inline bool is_launch_bound(const RnnProblem& problem, const Gpu& gpu) {
  const Sequence& sequence = problem.sequence;
  const double steps = static_cast<double>(sequence.steps) * problem.layers;
  const double weights = static_cast<double>(problem.gates() * problem.hidden) *
                         static_cast<double>(problem.input() + problem.hidden) * problem.directions;
  const LaunchBound& most = kLaunchBound[problem.differentiated ? 2 : problem.train ? 1 : 0];
  return !problem.captured && steps <= most.steps &&
         steps * static_cast<double>(sequence.batch) * weights / 1e6 <= most.products * gpu.multiprocessors;
}

}  // namespace aten_ext::cuda
