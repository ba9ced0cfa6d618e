// What the tests of the recurrent layers ask of their parts, beside the operators: the policy, the recurrence
// of one layer with a kernel of their choice, layers in chunks of their choice, gates wherever upstream is as
// fast, and the stand-in for cuBLASLt.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cublasLt.h>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/gates_rules.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/plan.h"
#include "ops/rnn/recurrence.h"

namespace {

using namespace aten_ext;
using namespace aten_ext::cuda;

RnnProblem problem_of(int64_t cell, Dtype dtype, bool tf32_allowed, int64_t steps, int64_t batch,
                      int64_t input, int64_t hidden, int64_t directions) {
  RnnProblem problem{};
  problem.cell = static_cast<Cell>(cell);
  problem.dtype = dtype;
  problem.tf32_allowed = tf32_allowed;
  problem.captured = true;  // so that the GPU's time alone decides
  problem.layers = 1;
  problem.directions = static_cast<int>(directions);
  problem.hidden = hidden;
  problem.sequence = {steps, batch, input, nullptr, Layout::TimeMajor};
  return problem;
}

// -> reason, [route, math, exchange, blocks, rows], tf32; for the GPU that is pretended.
std::tuple<std::string, std::vector<int64_t>, bool> plan(bool sixteen_bits, bool tf32_allowed, int64_t steps,
                                                         int64_t batch, int64_t input, int64_t hidden,
                                                         int64_t directions, int64_t cell) {
  const Dtype dtype = sixteen_bits ? Dtype::Half : Dtype::Float;
  const auto choice = plan_rnn(problem_of(cell, dtype, tf32_allowed, steps, batch, input, hidden, directions),
                               gpu_of(c10::Device(c10::kMeta)));
  if (choice.reason() != nullptr) {
    return {choice.reason(), {}, false};
  }
  const RnnPlan& p = choice.plan();
  const Recurrence& r = p.recurrence;
  return {"",
          {static_cast<int64_t>(p.route), static_cast<int64_t>(r.math), static_cast<int64_t>(r.exchange),
           r.blocks, r.rows},
          p.route == Route::Step ? p.step[0].math == Math::MmaTf32 : p.projection[0] == Projection::Tf32};
}

RecurrenceParams params(int64_t cell, at::ScalarType dtype, int64_t steps, int64_t batch, int64_t hidden,
                        int64_t directions, at::IntArrayRef kernel /* math, exchange, blocks, rows */) {
  RecurrenceParams p{};
  p.cell = static_cast<Cell>(cell);
  p.directions = static_cast<int>(directions);
  p.dtype = to_dtype(dtype);
  p.steps = steps;
  p.batch = static_cast<int>(batch);
  p.hidden = static_cast<int>(hidden);
  p.plan.math = static_cast<Math>(kernel[0]);
  p.plan.exchange = static_cast<Exchange>(kernel[1]);
  p.plan.blocks = static_cast<int>(kernel[2]);
  p.plan.rows = static_cast<int>(kernel[3]);
  TORCH_CHECK(
      choose_kernel(problem_of(cell, p.dtype, false, steps, batch, hidden, hidden, directions), p.plan),
      "no such kernel");
  return p;
}

// gates [D, T, B, gates * H] of float, w_hh [D, gates * H, H], biases [D, gates * H] or none, h0 and c0 [D,
// B, H] -> y [T, B, D * H], hy and cy [D, B, H]
std::tuple<at::Tensor, at::Tensor, at::Tensor> recurrence(
    int64_t cell, const at::Tensor& gates, const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
    const std::optional<at::Tensor>& b_hh, const at::Tensor& h0, const std::optional<at::Tensor>& c0,
    at::IntArrayRef kernel) {
  const int64_t directions = gates.size(0);
  const int64_t steps = gates.size(1);
  const int64_t batch = gates.size(2);
  const int64_t hidden = h0.size(2);
  const at::Tensor hy = at::empty_like(h0);
  const at::Tensor cy = at::empty_like(h0);
  const at::Tensor y = at::empty({steps, batch, directions * hidden}, h0.options());
  RecurrenceParams p = params(cell, h0.scalar_type(), steps, batch, hidden, directions, kernel);
  for (int64_t d = 0; d < directions; ++d) {
    p.direction[d] = {w_hh.select(0, d).const_data_ptr(),
                      b_ih.has_value() ? b_ih->select(0, d).const_data_ptr() : nullptr,
                      b_hh.has_value() ? b_hh->select(0, d).const_data_ptr() : nullptr,
                      gates.select(0, d).const_data_ptr<float>(),
                      h0.select(0, d).const_data_ptr(),
                      hy.select(0, d).mutable_data_ptr(),
                      static_cast<char*>(y.mutable_data_ptr()) + d * hidden * y.element_size()};
    p.direction[d].c0 = c0.has_value() ? c0->select(0, d).const_data_ptr() : nullptr;
    p.direction[d].cy = cy.select(0, d).mutable_data_ptr();
  }
  p.projection_step = gates.stride(1);
  p.projection_row = gates.stride(2);
  p.y_step = y.stride(0);
  p.y_row = y.stride(1);
  const at::Tensor words = at::zeros({p.plan.words}, h0.options().dtype(at::kLong));
  p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  const cudaError_t error = launch_recurrence(p, nullptr);
  TORCH_CHECK(error == cudaSuccess, "launch: error ", static_cast<int>(error));
  return {y, hy, cy};
}

// Steps of a chunk, for the GPU that is pretended; 0: declined, or no recurrence.
int64_t chunk(bool sixteen_bits, int64_t steps, int64_t batch, int64_t input, int64_t hidden,
              int64_t directions, int64_t cell) {
  const Dtype dtype = sixteen_bits ? Dtype::Half : Dtype::Float;
  const auto choice = plan_rnn(problem_of(cell, dtype, false, steps, batch, input, hidden, directions),
                               gpu_of(c10::Device(c10::kMeta)));
  return choice.reason() != nullptr ? 0 : choice.plan().chunk;
}

// A layer stack in chunks of so many steps -> the plan's words, y, hy, cy. No batch sizes: padded.
std::tuple<std::string, at::Tensor, at::Tensor, at::Tensor> in_chunks(
    const at::Tensor& input, at::TensorList weight, const at::Tensor& hx, const std::optional<at::Tensor>& cx,
    int64_t cell, int64_t hidden, int64_t layers, bool batch_first, bool bidirectional,
    at::IntArrayRef batch_sizes, int64_t steps) {
  const std::optional<at::Tensor> none;
  const args::_cudnn_rnn arguments{input, weight,        4,           none,   hx,          cx,
                                   cell,  hidden,        0,           layers, batch_first, 0.0,
                                   false, bidirectional, batch_sizes, none};
  const auto choice = choose(arguments);
  TORCH_CHECK(choice.reason() == nullptr, "declined: ", choice.reason());
  RnnPlan plan = choice.plan();
  TORCH_CHECK(plan.route == Route::Recurrence, "no recurrence");
  plan.chunk = steps;
  plan.pieces = pieces_of_forward(plan);
  auto ran = run(arguments, plan);
  TORCH_CHECK(!ran.refused(), "declined late");
  auto [y, hy, cy, reserve, buffer] = ran.take();
  return {plan.describe(), y, hy, cy};
}

// Gates of any size: the table of what upstream computes as fast is not asked.
template <class Plan, class Arguments>
auto run_gates(const Arguments& arguments) {
  Plan plan{};
  const char* const reason = plan_gates(arguments, plan);
  TORCH_CHECK(reason == nullptr, "declined: ", reason);
  auto ran = run(arguments, plan);
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_gates(const at::Tensor& input_gates,
                                                          const at::Tensor& hidden_gates,
                                                          const at::Tensor& cx,
                                                          const std::optional<at::Tensor>& input_bias,
                                                          const std::optional<at::Tensor>& hidden_bias) {
  return run_gates<GatesPlan>(
      args::_thnn_fused_lstm_cell{input_gates, hidden_gates, cx, input_bias, hidden_bias});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_gates_backward(const std::optional<at::Tensor>& grad_hy,
                                                                   const std::optional<at::Tensor>& grad_cy,
                                                                   const at::Tensor& cx, const at::Tensor& cy,
                                                                   const at::Tensor& workspace,
                                                                   bool has_bias) {
  return run_gates<GatesBackwardPlan>(
      args::_thnn_fused_lstm_cell_backward_impl{grad_hy, grad_cy, cx, cy, workspace, has_bias});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_gates_backward(
    const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  return run_gates<GatesBackwardPlan>(args::_thnn_fused_gru_cell_backward{grad_hy, workspace, has_bias});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_gru, m) {
  m.def("lstm_gates", lstm_gates);
  m.def("lstm_gates_backward", lstm_gates_backward);
  m.def("gru_gates_backward", gru_gates_backward);
  m.def("chunk", chunk);
  m.def(
      "in_chunks(Tensor input, Tensor[] weight, Tensor hx, Tensor? cx, int cell, int hidden, int layers, "
      "bool batch_first, bool bidirectional, int[] batch_sizes, int steps) -> (str, Tensor, Tensor, Tensor)",
      in_chunks);
  // What cuBLASLt was asked and told since the last call: questions, products, TF32, products of the last
  // batch, bytes of workspace that the last was given, and that the heuristic was allowed.
  m.def("lt", []() -> std::vector<int64_t> {
    device_on_host::FakeLt& fake = device_on_host::fake_lt();
    const std::vector<int64_t> told{fake.asked,
                                    fake.products,
                                    fake.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 1 : 0,
                                    fake.count,
                                    static_cast<int64_t>(fake.last_workspace),
                                    static_cast<int64_t>(fake.preference.workspace)};
    fake.asked = fake.products = 0;
    return told;
  });
  m.def("set_lt(bool answers, bool runs, bool takes_parts, int workspace) -> ()",
        [](bool answers, bool runs, bool takes_parts, int64_t workspace) {
          device_on_host::FakeLt& fake = device_on_host::fake_lt();
          fake.answers = answers;
          fake.runs = runs;
          fake.takes_parts = takes_parts;
          fake.workspace = static_cast<size_t>(workspace);
        });
  m.def("plan", plan);
  m.def("recurrence", recurrence);
}
