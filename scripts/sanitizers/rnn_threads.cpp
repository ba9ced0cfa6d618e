// The kernels of recurrent layers on the CPU, their rows and units shared out among std::threads, without
// torch's thread pool, which ThreadSanitizer cannot see into. A report means that two shares touch the same
// memory; each array has exactly its size, so that AddressSanitizer sees each byte too many. The results are
// held to those of one thread, bit by bit.
//
//   c++ -std=c++20 -O1 -g -fsanitize=thread -pthread -mavx2 -mfma -mf16c -ffp-contract=off
//       -DCPU_CAPABILITY=AVX2 -DCPU_CAPABILITY_AVX2 -I aten_ext -isystem <torch>/include
//       rnn_threads.cpp aten_ext/ops/rnn/cpu/forward_kernel.cpp aten_ext/ops/rnn/cpu/backward_kernel.cpp
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "ops/rnn/cpu/recurrence.h"

namespace {

using namespace aten_ext::cpu;
using Numbers = std::vector<float>;

struct Shape {
  RnnCell cell;
  bool reverse;
  int64_t hidden;
  std::vector<int64_t> rows;  // of each step
};

Numbers drawn(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> some(-1, 1);
  Numbers numbers(count);
  for (float& x : numbers) {
    x = some(random);
  }
  return numbers;
}

// Calls step(rows, units) for shares of one step or of all steps, each on a thread of its own.
void share(int threads, int64_t count, const std::function<void(RnnRange)>& part) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] { part({count * i / threads, count * (i + 1) / threads}); });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
}

// Calls step(t, rows, blocks) for all steps in the order `times`: threads take rows, or units of each step.
void run(const std::vector<int64_t>& times, int64_t batch, int64_t blocks, int threads, bool by_units,
         const std::function<void(int64_t, RnnRange, RnnRange)>& step) {
  if (by_units) {
    for (const int64_t t : times) {
      share(threads, blocks, [&](RnnRange of_units) { step(t, {0, batch}, of_units); });
    }
    return;
  }
  share(threads, batch, [&](RnnRange rows) {
    for (const int64_t t : times) {
      step(t, rows, {0, blocks});
    }
  });
}

// All that a forward and its backward write.
std::vector<Numbers> results(const Shape& s, const RnnKernels& kernels, int threads, bool by_units) {
  const int64_t h = s.hidden, g = gates_of(s.cell), k = kept_of(s.cell);
  RnnSteps steps;
  std::vector<int64_t> offsets;
  for (const int64_t rows : s.rows) {
    offsets.push_back(steps.total);
    steps.total += rows;
  }
  steps.count = static_cast<int64_t>(s.rows.size());
  steps.batch = s.rows[0];
  steps.rows = s.rows.data();
  steps.offsets = offsets.data();
  std::vector<int64_t> times(steps.count);
  for (int64_t i = 0; i < steps.count; ++i) {
    times[i] = s.reverse ? steps.count - 1 - i : i;
  }
  const int64_t of_state = steps.batch * h;
  const Numbers w = drawn(g * h * h, 1), x = drawn(steps.total * g * h, 2), bias = drawn(g * h, 3),
                input_bias = drawn(g * h, 7);
  const Numbers first = drawn(of_state, 4), first_cell = drawn(of_state, 5), grad = drawn(steps.total * h, 6);
  Numbers cell = first_cell, states(steps.total * h), output(steps.total * h), kept(steps.total * k * h);

  const int64_t blocks = kernels.forward_blocks(s.cell, h);
  Numbers panels(blocks * kernels.forward_block_size(s.cell, h));
  share(threads, blocks,
        [&](RnnRange some) { kernels.pack_forward(s.cell, w.data(), h, panels.data(), some); });
  RnnForward f;
  f.cell = s.cell;
  f.reverse = s.reverse;
  f.hidden = h;
  f.steps = steps;
  f.weights.panels = panels.data();
  f.projections = x.data();
  f.bias = bias.data();
  f.input_bias = input_bias.data();
  f.first_state = first.data();
  f.cell_state = cell.data();
  f.states = states.data();
  f.output = output.data();
  f.states_row = h;
  f.kept = k > 0 ? kept.data() : nullptr;
  run(times, steps.batch, blocks, threads, by_units,
      [&](int64_t t, RnnRange rows, RnnRange units) { kernels.forward_step(f, t, rows, units); });

  Numbers carried(of_state), p(steps.total * g * h), q(s.cell == RnnCell::Gru ? p.size() : 0),
      grad_first(of_state);
  const int64_t back_blocks = kernels.backward_blocks(h);
  Numbers back_panels(back_blocks * kernels.backward_block_size(s.cell, h));
  share(threads, back_blocks,
        [&](RnnRange some) { kernels.pack_backward(s.cell, w.data(), h, back_panels.data(), some); });
  RnnBackward b;
  b.cell = s.cell;
  b.reverse = s.reverse;
  b.hidden = h;
  b.steps = steps;
  b.weights.panels = back_panels.data();
  b.states = states.data();
  b.grad_output = grad.data();
  b.states_row = h;
  b.kept = kept.data();
  b.first_state = first.data();
  b.first_cell = first_cell.data();
  b.carried = carried.data();
  b.grad_input_gates = p.data();
  b.grad_hidden_gates = s.cell == RnnCell::Gru ? q.data() : p.data();
  b.grad_first_state = grad_first.data();
  run({times.rbegin(), times.rend()}, steps.batch, back_blocks, threads, by_units,
      [&](int64_t t, RnnRange rows, RnnRange units) { kernels.backward_step(b, t, rows, units); });
  share(threads, by_units ? back_blocks : steps.batch, [&](RnnRange some) {
    const RnnRange all_rows{0, steps.batch}, all_units{0, back_blocks};
    kernels.backward_first(b, by_units ? all_rows : some, by_units ? some : all_units);
  });
  return {states, output, cell, kept, p, q, grad_first};
}

}  // namespace

int main() {
  for (const RnnCell cell : {RnnCell::Gru, RnnCell::Lstm, RnnCell::Tanh, RnnCell::Relu}) {
    for (const int64_t hidden : {1, 7, 8, 9, 16, 17, 33, 50}) {
      for (const std::vector<int64_t>& rows :
           std::vector<std::vector<int64_t>>{{1}, {13, 13, 13}, {9, 7, 7, 2, 1}}) {
        for (const bool reverse : {false, true}) {
          const Shape shape{cell, reverse, hidden, rows};
          const RnnKernels& kernels = AVX2::kRnnKernels;
          const std::vector<Numbers> alone = results(shape, kernels, 1, false);
          for (const bool by_units : {false, true}) {
            for (const int threads : {2, 3, 5}) {
              if (results(shape, kernels, threads, by_units) != alone) {
                std::printf("cell %d, hidden %d, %d threads, by units %d: not the result of one thread\n",
                            static_cast<int>(cell), static_cast<int>(hidden), threads, by_units);
                return 1;
              }
            }
          }
        }
      }
    }
  }
  std::puts("recurrent kernels: every way of sharing out rows and units gives the same bits");
  return 0;
}
