// Recurrent layers on the CPU with an autograd node. Its backward is ours; where the backward itself is
// differentiated (create_graph), it runs PyTorch's composition again and differentiates that.
#include <ATen/ops/alias.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gru_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/lstm_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_relu_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/rnn_tanh_compositeimplicitautograd_dispatch.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <iterator>

#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {
namespace {

namespace composite = at::compositeimplicitautograd;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One layer by PyTorch's composition: y, hy, and an LSTM's cy.
variable_list compose_layer(const CpuRnnPlan& plan, const at::Tensor& x, const at::Tensor& batch_sizes,
                            const variable_list& states, const variable_list& params) {
  const bool two = plan.directions == 2;
  const auto padded = [&](auto&& op, const auto& hx) {
    return op(x, hx, params, plan.biases, 1, 0, false, two, false);
  };
  const auto packed = [&](auto&& op, const auto& hx) {
    return op(x, batch_sizes, hx, params, plan.biases, 1, 0, false, two);
  };
  const auto list = [](auto&& results) {
    return std::apply([](auto&&... each) { return variable_list{each...}; }, results);
  };
  const auto run = [&](auto&& op, const auto& hx) {
    return list(plan.packed ? packed(op, hx) : padded(op, hx));
  };
  // clang-format off
#define ATEN_EXT_OP(name) [](auto&&... a) { return composite::name(std::forward<decltype(a)>(a)...); }
  // clang-format on
  switch (plan.cell) {
    case RnnCell::Gru:
      return run(ATEN_EXT_OP(gru), states[0]);
    case RnnCell::Tanh:
      return run(ATEN_EXT_OP(rnn_tanh), states[0]);
    case RnnCell::Relu:
      return run(ATEN_EXT_OP(rnn_relu), states[0]);
    case RnnCell::Lstm:
      break;
  }
  return run(ATEN_EXT_OP(lstm), at::TensorList(states));
#undef ATEN_EXT_OP
}

// The whole stack, with the noise of a forward that has been.
variable_list compose(const RnnInputs& in, const CpuRnnPlan& plan, const std::vector<at::Tensor>& noise) {
  const int64_t steps = static_cast<int64_t>(in.rows.size());
  const int64_t of_layer = static_cast<int64_t>(in.params.size()) / plan.layers;
  at::Tensor x = plan.packed ? in.x : in.x.reshape({steps, in.rows[0], in.x.size(1)});
  const at::Tensor batch_sizes = plan.packed ? at::tensor(in.rows, at::kLong) : at::Tensor();
  std::vector<variable_list> last(in.states.size());
  for (int64_t l = 0; l < plan.layers; ++l) {
    variable_list states;
    for (const at::Tensor& state : in.states) {
      states.push_back(state.narrow(0, l * plan.directions, plan.directions));
    }
    const auto params = in.params.begin() + l * of_layer;
    variable_list results =
        compose_layer(plan, x, batch_sizes, states, variable_list(params, params + of_layer));
    x = results[0];
    if (l + 1 < plan.layers && !noise.empty()) {
      x = x.mul(noise[l].dim() == 0 ? noise[l] : noise[l].view(x.sizes()));
    }
    for (size_t i = 0; i < last.size(); ++i) {
      last[i].push_back(results[i + 1]);
    }
  }
  variable_list out{x.reshape({in.x.size(0), -1})};
  for (const variable_list& states : last) {
    out.push_back(at::cat(states, 0));
  }
  return out;
}

// The gradients as functions that can be differentiated again.
variable_list differentiable_gradients(const RnnInputs& in, const CpuRnnPlan& plan,
                                       const std::vector<at::Tensor>& noise, const variable_list& grads,
                                       const std::vector<bool>& wanted) {
  // Aliases, so that hooks of the caller's own tensors do not run here.
  RnnInputs aliases = in;
  variable_list all;
  const auto take = [&](at::Tensor& t) {
    if (wanted[all.size()]) {
      t = at::alias(t);
    }
    all.push_back(t);
  };
  take(aliases.x);
  for (at::Tensor& t : aliases.states) {
    take(t);
  }
  for (at::Tensor& t : aliases.params) {
    take(t);
  }
  const variable_list outputs = compose(aliases, plan, noise);
  variable_list of, by, inputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (grads[i].defined() && outputs[i].requires_grad()) {
      of.push_back(outputs[i]);
      by.push_back(grads[i]);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (wanted[i]) {
      inputs.push_back(all[i]);
    }
  }
  variable_list result(all.size());
  if (of.empty() || inputs.empty()) {
    return result;
  }
  const variable_list found = torch::autograd::grad(of, inputs, by, /*retain_graph=*/true,
                                                    /*create_graph=*/true, /*allow_unused=*/true);
  for (size_t i = 0, next = 0; i < all.size(); ++i) {
    if (wanted[i]) {
      result[i] = found[next++];
    }
  }
  return result;
}

// Inputs of the node: x, states, params. Its outputs: y, states.
//
// Upstream's nodes save neither biases nor an x whose weights are frozen, so that a caller may write to them;
// only a backward that is differentiated needs those, and finds out then whether that has happened.
struct RnnLayers : torch::autograd::Function<RnnLayers> {
  static constexpr int64_t kOthers = 2;  // arguments of forward() that are no tensors

  static variable_list forward(AutogradContext* ctx, at::TensorList /*inputs*/, const RnnInputs* in,
                               const CpuRnnPlan* plan) {
    const at::AutoDispatchBelowADInplaceOrView guard;
    RnnSaved saved;
    RnnOutputs out = forward_layers(*in, *plan, &saved);
    variable_list kept;
    std::vector<at::Tensor> late;
    std::vector<int64_t> versions;
    const auto save = [&](const at::Tensor& t, bool now) {
      kept.push_back(now ? t : at::Tensor());
      if (!now) {
        late.push_back(t);
        versions.push_back(t.is_inference() ? 0 : static_cast<int64_t>(t._version()));
      }
    };
    bool learns_input = false;
    for (int d = 0; d < plan->directions; ++d) {
      learns_input = learns_input || params_of(in->params, *plan, d)->requires_grad();
    }
    save(in->x, learns_input);
    for (const at::Tensor& t : in->states) {
      save(t, true);
    }
    for (size_t i = 0; i < in->params.size(); ++i) {
      save(in->params[i], !plan->biases || i % 4 < 2);
    }
    for (const auto* list : {&saved.layers, &saved.kept, &saved.noise}) {
      kept.insert(kept.end(), list->begin(), list->end());
    }
    ctx->save_for_backward(std::move(kept));
    ctx->set_materialize_grads(false);
    ctx->saved_data["late"] = late;
    ctx->saved_data["versions"] = versions;
    ctx->saved_data["rows"] = in->rows;
    ctx->saved_data["cell"] = static_cast<int64_t>(plan->cell);
    ctx->saved_data["layers"] = plan->layers;
    ctx->saved_data["plan"] =
        std::vector<int64_t>{plan->directions,       plan->biases,        plan->packed,  plan->panels,
                             plan->threads.by_units, plan->threads.parts, plan->bfloat16};
    ctx->saved_data["noise"] = static_cast<int64_t>(saved.noise.size());
    variable_list results{out.y};
    results.insert(results.end(), out.states.begin(), out.states.end());
    return results;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    CpuRnnPlan plan;
    plan.cell = static_cast<RnnCell>(ctx->saved_data["cell"].toInt());
    plan.layers = ctx->saved_data["layers"].toInt();
    const std::vector<int64_t> flags = ctx->saved_data["plan"].toIntVector();
    plan.directions = static_cast<int>(flags[0]);
    plan.biases = flags[1] != 0;
    plan.packed = flags[2] != 0;
    plan.panels = flags[3] != 0;
    plan.threads = {flags[4] != 0, static_cast<int>(flags[5])};
    plan.bfloat16 = flags[6] != 0;
    const int64_t of_states = plan.cell == RnnCell::Lstm ? 2 : 1;
    const int64_t of_params = plan.layers * plan.directions * (plan.biases ? 4 : 2);
    const int64_t inputs = 1 + of_states + of_params;

    const variable_list kept = ctx->get_saved_variables();
    RnnInputs in;
    in.rows = ctx->saved_data["rows"].toIntVector();
    for (int64_t t = 0, at = 0; t < static_cast<int64_t>(in.rows.size()); at += in.rows[t++]) {
      in.offsets.push_back(at);
    }
    std::vector<bool> wanted(inputs);
    for (int64_t i = 0; i < inputs; ++i) {
      wanted[i] = ctx->needs_input_grad(i);
    }
    if (!std::any_of(grads.begin(), grads.end(), [](const at::Tensor& g) { return g.defined(); })) {
      return variable_list(inputs + kOthers);
    }
    variable_list all(kept.begin(), kept.begin() + inputs);
    const bool again = c10::GradMode::is_enabled();
    const std::vector<at::Tensor> late = ctx->saved_data["late"].toTensorVector();
    const std::vector<int64_t> versions = ctx->saved_data["versions"].toIntVector();
    for (size_t i = 0, next = 0; i < all.size(); ++i) {
      if (!all[i].defined()) {
        const at::Tensor& t = late[next];
        TORCH_CHECK(!again || t.is_inference() || static_cast<int64_t>(t._version()) == versions[next],
                    "one of the variables needed for gradient computation has been modified by an inplace "
                    "operation:",
                    " [", t.toString(), " ", t.sizes(), "] is at version ", t._version(),
                    "; expected version ", versions[next], " instead.");
        all[i] = t;
        ++next;
      }
    }
    // Hooks of saved tensors may have given them other strides.
    const auto dense = [](const at::Tensor& t) { return t.defined() ? t.contiguous() : t; };
    in.x = all[0];
    in.states.assign(all.begin() + 1, all.begin() + 1 + of_states);
    in.params.assign(all.begin() + 1 + of_states, all.end());

    RnnSaved saved;
    auto from = kept.begin() + inputs;
    const auto take = [&](std::vector<at::Tensor>& list, int64_t count) {
      for (; count > 0; --count) {
        list.push_back(dense(*from++));
      }
    };
    take(saved.layers, plan.layers);
    take(saved.kept, kept_of(plan.cell) > 0 ? plan.layers * plan.directions : 0);
    take(saved.noise, ctx->saved_data["noise"].toInt());
    if (again) {
      variable_list result = differentiable_gradients(in, plan, saved.noise, grads, wanted);
      result.resize(inputs + kOthers);
      return result;
    }

    const at::AutoDispatchBelowADInplaceOrView guard;
    for (auto* list : {&in.states, &in.params}) {
      std::transform(list->begin(), list->end(), list->begin(), dense);
    }
    std::vector<at::Tensor> grad_states;
    for (int64_t i = 0; i < of_states; ++i) {
      grad_states.push_back(dense(grads[1 + i]));
    }
    RnnWanted want;
    want.x = wanted[0];
    want.states.assign(wanted.begin() + 1, wanted.begin() + 1 + of_states);
    want.params.assign(wanted.begin() + 1 + of_states, wanted.end());
    RnnGradients found = backward_layers(in, plan, saved, dense(grads[0]), grad_states, want);
    variable_list result{found.x};
    result.insert(result.end(), found.states.begin(), found.states.end());
    result.insert(result.end(), found.params.begin(), found.params.end());
    result.resize(inputs + kOthers);
    return result;
  }
};

}  // namespace

RnnOutputs differentiable_layers(const RnnInputs& in, const CpuRnnPlan& plan) {
  variable_list inputs{in.x};
  inputs.insert(inputs.end(), in.states.begin(), in.states.end());
  inputs.insert(inputs.end(), in.params.begin(), in.params.end());
  const variable_list results = RnnLayers::apply(at::TensorList(inputs), &in, &plan);
  return {results[0], {results.begin() + 1, results.end()}};
}

}  // namespace aten_ext::cpu
