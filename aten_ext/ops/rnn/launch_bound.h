// Layers whose launches take longer than they run: from Python upstream needs 65 us and more for a short
// layer in inference, 240 in training mode without gradients and 570 with them; ours 26, 60 and 300. Figures:
// docs/kernels/rnn.md.
#pragma once

#include "core/gpu.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// In inference, in training mode without gradients, and with them: steps of all layers, and millions of
// multiply-adds of all of them for each multiprocessor, up to which ours takes at most 60 and 100 us of an
// H200's time, and with gradients two fifths of what upstream takes from Python.
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
