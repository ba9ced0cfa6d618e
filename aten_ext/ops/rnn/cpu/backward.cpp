// A stack of recurrent layers on the CPU, backward: for each layer the steps back, which are the sequential
// part, then the gradients of weights, biases and input as GEMMs over all steps.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>
#include <iterator>
#include <optional>

#include "ops/rnn/cpu/call.h"
#include "ops/rnn/cpu/product.h"
#include "ops/rnn/cpu/steps.h"
#include "ops/rnn/cpu/threads.h"

namespace aten_ext::cpu {
namespace {

// One direction of a layer, with the arrays that the steps back fill.
struct Direction {
  RnnBackward p;
  at::Tensor panels;
  std::optional<StepProduct> product;  // where W_hh is not packed
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
  // Of the rows from `begin` on, what step `t` hands back.
  const auto hand_back = [&](Direction& d, int64_t t, int64_t begin) {
    if (begin < steps.rows[t]) {
      d.product->make(d.hidden_gates.narrow(0, steps.offsets[t] + begin, steps.rows[t] - begin), begin);
    }
  };
  // Position `count` is the first state.
  for (int64_t position = 0; position < steps.count + (first_states ? 1 : 0); ++position) {
    for (Direction& d : layer) {
      if (position == steps.count && d.p.reverse) {
        // Rows began at their own last elements.
        for (int64_t t = steps.count - 1, begin = 0; t >= 0; begin = steps.rows[t--]) {
          hand_back(d, t, begin);
        }
      } else if (position > 0) {
        hand_back(d, time_of(d.p, position - 1), 0);
      }
    }
    for_rows(plan.directions, steps.batch, gates_of(plan.cell) * hidden, [&](int64_t d, RnnRange rows) {
      const RnnBackward& p = layer[d].p;
      if (position < steps.count) {
        kernels.backward_step(p, time_of(p, position), rows, {0, blocks});
      } else {
        kernels.backward_first(p, rows, {0, blocks});
      }
    });
  }
}

// The sum over all steps of (gradient of h's product) x (state before the step). `gates`, `states`: as
// products take them.
at::Tensor grad_w_hh(const CpuRnnPlan& plan, const RnnBackward& p, const at::Tensor& gates,
                     const at::Tensor& states, const at::Tensor& first_state) {
  const RnnSteps& steps = p.steps;
  if (steps.total == steps.count * steps.batch && !plan.bfloat16) {
    const int64_t others = steps.total - steps.batch;
    const at::Tensor of_first = gates.narrow(0, p.reverse ? others : 0, steps.batch);
    if (others == 0) {
      return multiply(of_first.t(), first_state);
    }
    const at::Tensor of_others = gates.narrow(0, p.reverse ? 0 : steps.batch, others);
    const at::Tensor sum =
        gradient_product(sum_parts(plan), of_others, states.narrow(0, p.reverse ? steps.batch : 0, others));
    add_product(sum, of_first.t(), first_state);
    return sum;
  }
  at::Tensor before = at::empty({steps.total, p.hidden}, states.options().dtype(at::kFloat));
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
  return gradient_product(sum_parts(plan), gates, as_factor(before, plan.bfloat16));
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
  const at::ScalarType dtype = in.x.scalar_type();
  const auto options = in.x.options().dtype(at::kFloat);
  const RnnKernels& kernels = rnn_kernels();
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  std::vector<at::Tensor> first_states, grad_last;
  std::transform(in.states.begin(), in.states.end(), std::back_inserter(first_states), wide);
  std::transform(grad_states.begin(), grad_states.end(), std::back_inserter(grad_last), wide);
  RnnGradients out;
  out.params.resize(in.params.size());
  out.states.resize(in.states.size());
  for (size_t i = 0; i < in.states.size(); ++i) {
    // That of an LSTM's cell state is what the steps carry.
    if (wanted.states[i] || i == 1) {
      out.states[i] = at::empty_like(first_states[i], at::MemoryFormat::Contiguous);
    }
  }
  at::Tensor grad = wide(grad_y);
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
        direction.panels = pack_panels(plan.threads, w_hh, kernels.backward_blocks(hidden),
                                       kernels.backward_block_size(plan.cell, hidden),
                                       [&](auto... a) { kernels.pack_backward(plan.cell, a...); });
        p.weights.panels = direction.panels.const_data_ptr<float>();
      } else {
        direction.product.emplace(w_hh, steps.batch);
        p.weights.product = direction.product->data();
      }
      p.states = saved.layers[l].const_data_ptr<float>() + d * hidden;
      p.states_row = plan.directions * hidden;
      p.grad_output = grad.defined() ? grad.const_data_ptr<float>() + d * hidden : nullptr;
      p.kept = kept_of(plan.cell) > 0 ? saved.kept[index].const_data_ptr<float>() : nullptr;
      p.first_state = first_states[0].const_data_ptr<float>() + index * of_state;
      p.grad_last_state = data_or_null(grad_last[0]);
      p.grad_last_state += p.grad_last_state != nullptr ? index * of_state : 0;
      if (lstm) {
        p.first_cell = first_states[1].const_data_ptr<float>() + index * of_state;
        p.grad_last_cell = data_or_null(grad_last[1]);
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
    at::Tensor x = l == 0 ? in.x : saved.layers[l - 1].to(dtype);
    x = as_factor(masked ? x.mul(saved.noise[l - 1]) : x, plan.bfloat16);
    grad = at::Tensor();
    for (int d = 0; d < plan.directions; ++d) {
      const int64_t index = l * plan.directions + d;
      const at::Tensor* const params = params_of(in.params, plan, index);
      const int64_t at = params - in.params.data();
      const Direction& direction = layer[d];
      const at::Tensor input_gates = as_factor(direction.input_gates, plan.bfloat16);
      if (wanted.params[at]) {
        out.params[at] = gradient_product(sum_parts(plan), input_gates, x).to(dtype);
      }
      if (wanted.params[at + 1]) {
        const at::Tensor hidden_gates =
            plan.cell == RnnCell::Gru ? as_factor(direction.hidden_gates, plan.bfloat16) : input_gates;
        out.params[at + 1] =
            grad_w_hh(plan, direction.p, hidden_gates, saved.layers[l].narrow(1, d * hidden, hidden),
                      first_states[0].select(0, index))
                .to(dtype);
      }
      if (plan.biases && wanted.params[at + 2]) {
        out.params[at + 2] = direction.input_gates.sum(0).to(dtype);
      }
      if (plan.biases && wanted.params[at + 3]) {
        out.params[at + 3] = plan.cell != RnnCell::Gru && wanted.params[at + 2]
                                 ? out.params[at + 2].clone()
                                 : direction.hidden_gates.sum(0).to(dtype);
      }
      if (wants_input) {
        const at::Tensor of_direction =
            product(sum_parts(plan), input_gates, as_factor(params[0], plan.bfloat16));
        grad = grad.defined() ? grad.add_(of_direction) : of_direction;
      }
    }
    if (l > 0) {
      grad = wide(grad);
    }
    if (masked) {
      grad = grad.mul_(saved.noise[l - 1]);
    }
  }
  if (wanted.x) {
    out.x = grad.to(dtype);
  }
  if (lstm && !wanted.states[1]) {
    out.states[1] = at::Tensor();
  }
  for (at::Tensor& t : out.states) {
    t = t.defined() ? t.to(dtype) : t;
  }
  return out;
}

}  // namespace aten_ext::cpu
