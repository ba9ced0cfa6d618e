// How threads share the steps of a layer: by rows of the batch through all steps, or by units of each step.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/denormals.h"
#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {

// Sizes of a layer, as far as its time depends on them.
struct RnnWork {
  RnnCell cell;
  int directions;
  int64_t steps, batch, hidden;
  bool bfloat16 = false;
  int64_t inputs = 1;  // of the first layer
};

RnnThreads share_work(const RnnWork& work);

// Whether packing W_hh is made up for in this many steps.
bool is_worth_packing(const RnnWork& work, const RnnThreads& threads);

// Whether steps of bfloat16 are faster than those of upstream's composition, which multiplies 16 bits.
bool beats_narrow_products(const RnnWork& work, const RnnThreads& threads);

// Whether bfloat16 is worth widening once a call, where the processor has no products of 16 bits.
bool is_worth_widening(const RnnWork& work, int64_t layers);

// Whether a step's product is so large that the libraries' kernels for it gain on ours.
bool is_large_step(const RnnWork& work);

// The same of an LSTM of equal lengths, all of which is oneDNN's.
bool is_large_lstm_step(const RnnWork& work);

// Whether a few steps of equal lengths are little but the products, which upstream's composition has too.
bool is_all_product(const RnnWork& work);

// Whether the backward of an LSTM of equal lengths, with its forward, is faster than oneDNN's: where
// threads go through all steps on their own, or a step is so short that what oneDNN does around it counts.
bool beats_onednn(const RnnWork& work, const RnnThreads& threads);

// Where the parts of the rows begin, and the end: each with about as many steps as the others.
std::vector<int64_t> split_rows(const RnnSteps& steps, int parts);

// Calls step(direction, position, rows, blocks) for positions 0 ... count - 1 in the order in which a
// direction takes its steps, with a barrier between steps where threads share units.
template <class Step>
void for_steps(const RnnThreads& threads, int directions, const RnnSteps& steps, int64_t blocks,
               const Step& step) {
  if (threads.by_units) {
    const int64_t chunks = directions * blocks;
    const int64_t grain = std::max<int64_t>(1, chunks / at::get_num_threads());
    for (int64_t position = 0; position < steps.count; ++position) {
      parallel_for_as_caller(0, chunks, grain, [&](int64_t begin, int64_t end) {
        for (int64_t direction = begin / blocks; direction * blocks < end; ++direction) {
          const int64_t first = direction * blocks;
          step(direction, position, RnnRange{0, steps.batch},
               RnnRange{std::max(begin - first, int64_t{0}), std::min(end - first, blocks)});
        }
      });
    }
    return;
  }
  const std::vector<int64_t> bounds = split_rows(steps, threads.parts);
  const int64_t parts = static_cast<int64_t>(bounds.size()) - 1;
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t part = i % parts;
      for (int64_t position = 0; position < steps.count; ++position) {
        step(i / parts, position, RnnRange{bounds[part], bounds[part + 1]}, RnnRange{0, blocks});
      }
    }
  };
  if (directions * parts == 1 || threads.parts == 0) {
    run(0, directions * parts);
  } else {
    parallel_for_as_caller(0, directions * parts, 1, run);
  }
}

}  // namespace aten_ext::cpu
