// A stack of recurrent layers on the CPU, backward: for each layer the steps back, which are the sequential
// part, then the gradients of weights, biases and input as GEMMs over all steps.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <cstring>

#include "ops/rnn/cpu/call.h"
#include "ops/rnn/cpu/product.h"
#include "ops/rnn/cpu/threads.h"

namespace aten_ext::cpu {
namespace {

// Below this many elements of gates a pass over them stays on one thread.
constexpr int64_t kGatesOfThread = 16384;

at::Tensor packed_weights(const CpuRnnPlan& plan, const at::Tensor& w_hh) {
  const RnnKernels& kernels = rnn_kernels();
  const int64_t hidden = w_hh.size(1);
  const int64_t blocks = kernels.backward_blocks(hidden);
  at::Tensor panels = at::empty({blocks * kernels.backward_block_size(plan.cell, hidden)}, w_hh.options());
  const float* const from = w_hh.const_data_ptr<float>();
  float* const to = panels.mutable_data_ptr<float>();
  const auto pack = [&](int64_t begin, int64_t end) {
    kernels.pack_backward(plan.cell, from, hidden, to, {begin, end});
  };
  if (plan.threads.parts == 0) {
    pack(0, blocks);
  } else {
    at::parallel_for(0, blocks, 1, pack);
  }
  return panels;
}

// One direction of a layer, with the arrays that the steps back fill.
struct Direction {
  RnnBackward p;
  at::Tensor weights;  // panels, or w_hh
  at::Tensor product;
  at::Tensor input_gates, hidden_gates;
};

int64_t time_of(const RnnBackward& p, int64_t position) {
  return p.reverse ? position : p.steps.count - 1 - position;
}

void run_packed(const CpuRnnPlan& plan, const std::vector<Direction>& layer, bool first_states) {
  const RnnKernels& kernels = rnn_kernels();
  const RnnSteps& steps = layer[0].p.steps;
  const int64_t blocks = kernels.backward_blocks(layer[0].p.hidden);
  for_steps(plan.threads, plan.directions, steps, blocks,
            [&](int64_t d, int64_t position, RnnRange rows, RnnRange of_units) {
              const RnnBackward& p = layer[d].p;
              kernels.backward_step(p, time_of(p, position), rows, of_units);
              if (first_states && !plan.threads.by_units && position + 1 == steps.count) {
                kernels.backward_first(p, rows, of_units);
              }
            });
  if (first_states && plan.threads.by_units) {
    RnnSteps once = steps;
    once.count = 1;
    for_steps(plan.threads, plan.directions, once, blocks,
              [&](int64_t d, int64_t /*position*/, RnnRange rows, RnnRange of_units) {
                kernels.backward_first(layer[d].p, rows, of_units);
              });
  }
}

void run_products(const CpuRnnPlan& plan, std::vector<Direction>& layer, bool first_states) {
  const RnnKernels& kernels = rnn_kernels();
  const RnnSteps& steps = layer[0].p.steps;
  const int64_t hidden = layer[0].p.hidden;
  const int64_t blocks = kernels.backward_blocks(hidden);
  const int64_t grain = std::max<int64_t>(1, kGatesOfThread / (gates_of(plan.cell) * hidden));
  // Position `count` is the first state.
  for (int64_t position = 0; position < steps.count + (first_states ? 1 : 0); ++position) {
    for (Direction& d : layer) {
      if (position > 0) {
        const int64_t from = steps.offsets[time_of(d.p, position - 1)];
        at::mm_out(d.product, d.hidden_gates.narrow(0, from, steps.batch), d.weights);
      }
    }
    at::parallel_for(0, plan.directions * steps.batch, grain, [&](int64_t begin, int64_t end) {
      for (int64_t d = begin / steps.batch; d * steps.batch < end; ++d) {
        const RnnBackward& p = layer[d].p;
        const int64_t row = d * steps.batch;
        const RnnRange rows{std::max(begin - row, int64_t{0}), std::min(end - row, steps.batch)};
        if (position < steps.count) {
          kernels.backward_step(p, time_of(p, position), rows, {0, blocks});
        } else {
          kernels.backward_first(p, rows, {0, blocks});
        }
      }
    });
  }
}

// The sum over all steps of (gradient of h's product) x (state before the step).
at::Tensor grad_w_hh(const SumParts& parts, const Direction& d, const at::Tensor& states,
                     const at::Tensor& first_state) {
  const RnnBackward& p = d.p;
  const RnnSteps& steps = p.steps;
  if (steps.total == steps.count * steps.batch) {
    const int64_t others = steps.total - steps.batch;
    const at::Tensor of_first = d.hidden_gates.narrow(0, p.reverse ? others : 0, steps.batch);
    if (others == 0) {
      return at::mm(of_first.t(), first_state);
    }
    const at::Tensor of_others = d.hidden_gates.narrow(0, p.reverse ? 0 : steps.batch, others);
    at::Tensor sum =
        gradient_product(parts, of_others, states.narrow(0, p.reverse ? steps.batch : 0, others));
    return sum.addmm_(of_first.t(), first_state);
  }
  at::Tensor before = at::empty({steps.total, p.hidden}, states.options());
  float* const to = before.mutable_data_ptr<float>();
  for (int64_t t = 0; t < steps.count; ++t) {
    const int64_t from = p.reverse ? t + 1 : t - 1;
    const int64_t known = from < 0 || from >= steps.count ? 0 : std::min(steps.rows[from], steps.rows[t]);
    for (int64_t row = 0; row < steps.rows[t]; ++row) {
      const float* const state = row < known ? p.states + (steps.offsets[from] + row) * p.states_row
                                             : p.first_state + row * p.hidden;
      std::memcpy(to + (steps.offsets[t] + row) * p.hidden, state, sizeof(float) * p.hidden);
    }
  }
  return gradient_product(parts, d.hidden_gates, before);
}

const float* data_or_null(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr<float>() : nullptr;
}

}  // namespace

RnnGradients backward_layers(const RnnInputs& in, const CpuRnnPlan& plan, const RnnSaved& saved,
                             const at::Tensor& grad_y, const std::vector<at::Tensor>& grad_states,
                             const RnnWanted& wanted) {
  const RnnSteps steps = in.steps();
  const int64_t hidden = in.hidden();
  const int64_t gates = gates_of(plan.cell) * hidden;
  const int64_t of_state = steps.batch * hidden;
  const bool lstm = plan.cell == RnnCell::Lstm;
  const auto options = in.x.options();
  RnnGradients out;
  out.params.resize(in.params.size());
  out.states.resize(in.states.size());
  for (size_t i = 0; i < in.states.size(); ++i) {
    // That of an LSTM's cell state is what the steps carry.
    if (wanted.states[i] || i == 1) {
      out.states[i] = at::empty_like(in.states[i], at::MemoryFormat::Contiguous);
    }
  }
  at::Tensor grad = grad_y;
  for (int64_t l = plan.layers - 1; l >= 0; --l) {
    std::vector<Direction> layer(plan.directions);
    for (int d = 0; d < plan.directions; ++d) {
      const int64_t index = l * plan.directions + d;
      Direction& direction = layer[d];
      RnnBackward& p = direction.p;
      p.cell = plan.cell;
      p.reverse = d == 1;
      p.hidden = hidden;
      p.steps = steps;
      const at::Tensor& w_hh = params_of(in.params, plan, index)[1];
      if (plan.panels) {
        direction.weights = packed_weights(plan, w_hh);
        p.weights.panels = direction.weights.const_data_ptr<float>();
      } else {
        direction.weights = w_hh;
        direction.product = at::empty({steps.batch, hidden}, options);
        p.weights.product = direction.product.const_data_ptr<float>();
      }
      p.states = saved.layers[l].const_data_ptr<float>() + d * hidden;
      p.states_row = plan.directions * hidden;
      p.grad_output = grad.defined() ? grad.const_data_ptr<float>() + d * hidden : nullptr;
      p.kept = kept_of(plan.cell) > 0 ? saved.kept[index].const_data_ptr<float>() : nullptr;
      p.first_state = in.states[0].const_data_ptr<float>() + index * of_state;
      p.grad_last_state = data_or_null(grad_states[0]);
      p.grad_last_state += p.grad_last_state != nullptr ? index * of_state : 0;
      if (lstm) {
        p.first_cell = in.states[1].const_data_ptr<float>() + index * of_state;
        p.grad_last_cell = data_or_null(grad_states[1]);
        p.grad_last_cell += p.grad_last_cell != nullptr ? index * of_state : 0;
        p.carried = out.states[1].mutable_data_ptr<float>() + index * of_state;
      }
      direction.input_gates = at::empty({steps.total, gates}, options);
      direction.hidden_gates =
          plan.cell == RnnCell::Gru ? at::empty_like(direction.input_gates) : direction.input_gates;
      p.grad_input_gates = direction.input_gates.mutable_data_ptr<float>();
      p.grad_hidden_gates = direction.hidden_gates.mutable_data_ptr<float>();
      p.grad_first_state =
          wanted.states[0] ? out.states[0].mutable_data_ptr<float>() + index * of_state : nullptr;
    }
    const at::Tensor carried =
        plan.cell == RnnCell::Gru ? at::empty({plan.directions, steps.batch, hidden}, options) : at::Tensor();
    if (carried.defined()) {
      for (int d = 0; d < plan.directions; ++d) {
        layer[d].p.carried = carried.mutable_data_ptr<float>() + d * of_state;
      }
    }
    if (plan.panels) {
      run_packed(plan, layer, wanted.states[0]);
    } else {
      run_products(plan, layer, wanted.states[0]);
    }

    const bool masked = l > 0 && !saved.noise.empty();
    const bool wants_input = l > 0 || wanted.x;
    at::Tensor x = l == 0 ? in.x : masked ? saved.layers[l - 1].mul(saved.noise[l - 1]) : saved.layers[l - 1];
    grad = at::Tensor();
    for (int d = 0; d < plan.directions; ++d) {
      const int64_t index = l * plan.directions + d;
      const at::Tensor* const params = params_of(in.params, plan, index);
      const int64_t at = params - in.params.data();
      const Direction& direction = layer[d];
      if (wanted.params[at]) {
        out.params[at] = gradient_product(sum_parts(plan), direction.input_gates, x);
      }
      if (wanted.params[at + 1]) {
        out.params[at + 1] =
            grad_w_hh(sum_parts(plan), direction, saved.layers[l].narrow(1, d * hidden, hidden),
                      in.states[0].select(0, index));
      }
      if (plan.biases && wanted.params[at + 2]) {
        out.params[at + 2] = direction.input_gates.sum(0);
      }
      if (plan.biases && wanted.params[at + 3]) {
        out.params[at + 3] = plan.cell != RnnCell::Gru && wanted.params[at + 2]
                                 ? out.params[at + 2].clone()
                                 : direction.hidden_gates.sum(0);
      }
      if (wants_input) {
        const at::Tensor of_direction = product(sum_parts(plan), direction.input_gates, params[0]);
        grad = grad.defined() ? grad.add_(of_direction) : of_direction;
      }
    }
    if (masked) {
      grad = grad.mul_(saved.noise[l - 1]);
    }
  }
  if (wanted.x) {
    out.x = grad;
  }
  if (lstm && !wanted.states[1]) {
    out.states[1] = at::Tensor();
  }
  return out;
}

}  // namespace aten_ext::cpu
