// A stack of recurrent layers on the CPU, forward: for each layer one GEMM that projects the input of all
// steps, then the steps.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "ops/rnn/cpu/call.h"
#include "ops/rnn/cpu/product.h"
#include "ops/rnn/cpu/steps.h"
#include "ops/rnn/cpu/threads.h"

namespace aten_ext::cpu {
namespace {

// One layer: its directions side by side.
struct Layer {
  std::vector<RnnForward> directions;
  std::vector<at::Tensor> owned;      // what the pointers point into
  std::vector<StepProduct> products;  // of each direction, where W_hh is not packed
};

int64_t time_of(const RnnForward& p, int64_t position) {
  return p.reverse ? p.steps.count - 1 - position : position;
}

void run_packed(const CpuRnnPlan& plan, const Layer& layer) {
  const RnnKernels& kernels = rnn_kernels();
  const RnnForward& first = layer.directions[0];
  const int64_t blocks = kernels.forward_blocks(plan.cell, first.hidden);
  for_steps(plan.threads, plan.directions, first.steps, blocks,
            [&](int64_t direction, int64_t position, RnnRange rows, RnnRange of_units) {
              const RnnForward& p = layer.directions[direction];
              kernels.forward_step(p, time_of(p, position), rows, of_units);
            });
}

// A GEMM for each step and direction, then the gates.
void run_products(const CpuRnnPlan& plan, Layer& layer, const at::Tensor& states,
                  const std::vector<at::Tensor>& first_states) {
  const RnnKernels& kernels = rnn_kernels();
  const RnnSteps& steps = layer.directions[0].steps;
  const int64_t hidden = layer.directions[0].hidden;
  const int64_t blocks = kernels.forward_blocks(plan.cell, hidden);
  for (int64_t position = 0; position < steps.count; ++position) {
    for (int d = 0; d < plan.directions; ++d) {
      const RnnForward& p = layer.directions[d];
      const int64_t rows = steps.rows[time_of(p, position)];
      int64_t known = 0;  // those that had a step before this one
      if (position > 0) {
        const int64_t before = time_of(p, position - 1);
        known = std::min(rows, steps.rows[before]);
        layer.products[d].make(states.narrow(0, steps.offsets[before], known).narrow(1, d * hidden, hidden));
      }
      layer.products[d].make(first_states[d].narrow(0, known, rows - known), known);
    }
    for_rows(plan.directions, steps.batch, gates_of(plan.cell) * hidden, [&](int64_t d, RnnRange rows) {
      const RnnForward& p = layer.directions[d];
      kernels.forward_step(p, time_of(p, position), rows, {0, blocks});
    });
  }
}

// Each row's state after its last step.
void copy_last_states(const RnnForward& p, float* to) {
  for (int64_t row = 0, t = p.steps.count - 1; row < p.steps.batch; ++row) {
    while (p.steps.rows[t] <= row) {
      --t;
    }
    const int64_t at = p.steps.offsets[p.reverse ? 0 : t] + row;
    std::memcpy(to + row * p.hidden, p.states + at * p.states_row, sizeof(float) * p.hidden);
  }
}

// What upstream's at::dropout multiplies by, drawn as it draws it.
at::Tensor dropout_noise(const at::Tensor& states, double p) {
  return p == 1 ? at::zeros({}, states.options()) : at::empty_like(states).bernoulli_(1 - p).div_(1 - p);
}

}  // namespace

RnnOutputs forward_layers(const RnnInputs& in, const CpuRnnPlan& plan, RnnSaved* saved) {
  const RnnSteps steps = in.steps();
  const int64_t hidden = in.hidden();
  const RnnKernels& kernels = rnn_kernels();
  const auto options = in.x.options().dtype(at::kFloat);
  const at::Tensor all_first = in.states[0].to(at::kFloat);
  RnnOutputs out;
  out.states.push_back(at::empty_like(all_first, at::MemoryFormat::Contiguous));
  if (plan.cell == RnnCell::Lstm) {
    out.states.push_back(in.states[1].to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  }
  at::Tensor x = in.x;
  for (int64_t l = 0; l < plan.layers; ++l) {
    const bool is_last = l + 1 == plan.layers;
    at::Tensor states = at::empty({steps.total, plan.directions * hidden}, options);
    // The caller may write to what it is given; what the backward reads must not change.
    const bool doubled = is_last && saved != nullptr && !plan.bfloat16;
    if (is_last) {
      out.y = doubled ? at::empty_like(states) : states;
    }
    Layer layer;
    std::vector<at::Tensor> first_states;
    for (int d = 0; d < plan.directions; ++d) {
      const int64_t index = l * plan.directions + d;
      const at::Tensor* const params = params_of(in.params, plan, index);
      RnnForward p;
      p.cell = plan.cell;
      p.reverse = d == 1;
      p.hidden = hidden;
      p.steps = steps;
      // 16 bits are rounded with their bias, as upstream's are; for fp32 the gates add it, without a pass.
      const at::Tensor bias =
          plan.biases && plan.bfloat16 ? as_factor(params[2], plan.bfloat16) : at::Tensor();
      at::Tensor projections = linear_product(sum_parts(plan), as_factor(x, plan.bfloat16),
                                              as_factor(params[0], plan.bfloat16), bias)
                                   .to(at::kFloat);
      if (l == 0 && plan.projects_as_given) {
        projections = projections.view({steps.batch, steps.count, -1}).transpose(0, 1).contiguous();
      }
      p.projections = projections.const_data_ptr<float>();
      layer.owned.push_back(projections);
      if (plan.panels) {
        layer.owned.push_back(pack_panels(plan.threads, params[1], kernels.forward_blocks(plan.cell, hidden),
                                          kernels.forward_block_size(plan.cell, hidden),
                                          [&](auto... a) { kernels.pack_forward(plan.cell, a...); }));
        p.weights.panels = layer.owned.back().const_data_ptr<float>();
      } else {
        layer.products.emplace_back(params[1].t(), steps.batch);
        p.weights.product = layer.products.back().data();
      }
      if (plan.biases) {
        p.input_bias = plan.bfloat16 ? nullptr : params[2].const_data_ptr<float>();
        layer.owned.push_back(params[3].to(at::kFloat));
        p.bias = layer.owned.back().const_data_ptr<float>();
      }
      first_states.push_back(all_first.select(0, index));
      p.first_state = first_states.back().const_data_ptr<float>();
      if (plan.cell == RnnCell::Lstm) {
        p.cell_state = out.states[1].mutable_data_ptr<float>() + index * steps.batch * hidden;
      }
      p.states = states.mutable_data_ptr<float>() + d * hidden;
      p.states_row = plan.directions * hidden;
      if (doubled) {
        p.output = out.y.mutable_data_ptr<float>() + d * hidden;
      }
      if (saved != nullptr && kept_of(plan.cell) > 0) {
        saved->kept.push_back(at::empty({steps.total, kept_of(plan.cell) * hidden}, options));
        p.kept = saved->kept.back().mutable_data_ptr<float>();
      }
      layer.directions.push_back(p);
    }
    if (plan.panels) {
      run_packed(plan, layer);
    } else {
      run_products(plan, layer, states, first_states);
    }
    for (int d = 0; d < plan.directions; ++d) {
      copy_last_states(layer.directions[d], out.states[0].mutable_data_ptr<float>() +
                                                (l * plan.directions + d) * steps.batch * hidden);
    }
    if (saved != nullptr) {
      saved->layers.push_back(states);
    }
    x = states.to(in.x.scalar_type());
    if (is_last) {
      out.y = plan.bfloat16 ? x : out.y;
    } else if (plan.dropout != 0) {
      const at::Tensor noise = dropout_noise(x, plan.dropout);
      x = x.mul(noise);
      if (saved != nullptr) {
        saved->noise.push_back(noise);
      }
    }
  }
  for (at::Tensor& t : out.states) {
    t = t.to(in.x.scalar_type());
  }
  return out;
}

}  // namespace aten_ext::cpu
