// What the tests of a backward ask beside the operator: every cell, in chunks and parts of their choice.
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <cublasLt.h>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/training/reserve.h"
#include "ops/rnn/training/upstream_facts.h"

namespace {

using namespace aten_ext;
using namespace aten_ext::cuda;

RnnProblem problem_of_backward(const args::_cudnn_rnn_backward& a) {
  RnnProblem problem{};
  problem.cell = static_cast<Cell>(a.mode);
  problem.dtype = to_dtype(a.input.scalar_type());
  problem.biases = a.weight_stride0 == 4;
  problem.batch_first = a.batch_first;
  problem.train = true;
  problem.layers = static_cast<int>(a.num_layers);
  problem.directions = a.bidirectional ? 2 : 1;
  problem.hidden = a.hidden_size;
  problem.sequence = a.batch_sizes.empty()
                         ? Sequence{a.input.size(a.batch_first ? 1 : 0), a.input.size(a.batch_first ? 0 : 1),
                                    a.input.size(2), nullptr, Layout::TimeMajor}
                         : Sequence{static_cast<int64_t>(a.batch_sizes.size()), a.batch_sizes[0],
                                    a.input.size(1), a.batch_sizes.data(), Layout::TimeMajor};
  return problem;
}

// chunk, part: steps; 0: as the plan has it.
std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> backward(
    const at::Tensor& input, at::TensorList weight, int64_t weight_stride0, const at::Tensor& weight_buf,
    const at::Tensor& hx, const std::optional<at::Tensor>& cx, const at::Tensor& output,
    const std::optional<at::Tensor>& grad_output, const std::optional<at::Tensor>& grad_hy,
    const std::optional<at::Tensor>& grad_cy, int64_t mode, int64_t hidden, int64_t layers, bool batch_first,
    bool bidirectional, const at::Tensor& reserve, std::array<bool, 4> mask, int64_t chunk, int64_t part,
    bool tf32, bool one_launch, bool few_rows, at::IntArrayRef batch_sizes) {
  const std::optional<at::Tensor> none;
  const args::_cudnn_rnn_backward a{input,       weight,      weight_stride0, weight_buf, hx,   cx,
                                    output,      grad_output, grad_hy,        grad_cy,    mode, hidden,
                                    0,           layers,      batch_first,    0.0,        true, bidirectional,
                                    batch_sizes, none,        reserve,        mask};
  RnnBackwardPlan plan = plan_rnn_backward(problem_of_backward(a), {mask[0], mask[1], mask[2], mask[3]},
                                           gpu_of(c10::Device(c10::kMeta)), false);
  plan.one_launch = one_launch;
  plan.few_rows = few_rows;
  plan.tf32 = plan.tf32_results = tf32;
  plan.chunk = chunk > 0 ? chunk : plan.chunk;
  plan.part = part > 0 ? part : plan.part;
  if (one_launch) {
    const RnnProblem& problem = plan.problem;
    const auto choice =
        choose_recurrence_backward({plan.chunk, problem.sequence.batch, problem.hidden, problem.directions},
                                   problem.cell, problem.dtype, tf32, gpu_of(c10::Device(c10::kMeta)));
    TORCH_CHECK(choice.reason() == nullptr, choice.reason());
    plan.recurrence = choice.plan();
  }
  auto ran = run(a, plan);
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

// A forward in training of what the rule may leave to upstream. `saves`: gradients are to come.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& input, at::TensorList weight, int64_t weight_stride0, const at::Tensor& weight_buf,
    const at::Tensor& hx, const std::optional<at::Tensor>& cx, int64_t mode, int64_t hidden, int64_t layers,
    bool bidirectional, at::IntArrayRef batch_sizes, bool saves) {
  const std::optional<at::Tensor> none, buffer(weight_buf);
  const args::_cudnn_rnn a{input,       weight, weight_stride0, buffer, hx,  cx,   mode,
                           hidden,      0,      layers,         false,  0.0, true, bidirectional,
                           batch_sizes, none};
  RnnProblem problem{};
  const char* const reason = problem_of(a, problem);
  TORCH_CHECK(reason == nullptr, reason);
  const Choice<RnnPlan> choice = plan_rnn(problem, gpu_of(c10::Device(c10::kMeta)));
  TORCH_CHECK(choice.reason() == nullptr, choice.reason());
  RnnPlan chosen = choice.plan();
  chosen.problem.differentiated = saves;
  chosen.saves = saves_coefficients(chosen, gpu_of(c10::Device(c10::kMeta)));
  TORCH_CHECK(chosen.saves == saves, "no kernel that saves");
  auto ran = run(a, chosen);
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

// Bytes of the reserve, and where each inner layer's output is.
std::vector<int64_t> reserve_of(bool sixteen_bits, int64_t steps, int64_t batch, int64_t hidden,
                                int64_t layers, int64_t directions) {
  RnnProblem problem{};
  problem.dtype = sixteen_bits ? Dtype::Half : Dtype::Float;
  problem.layers = static_cast<int>(layers);
  problem.directions = static_cast<int>(directions);
  problem.hidden = hidden;
  problem.sequence = {steps, batch, 1, nullptr, Layout::TimeMajor};
  const Reserve reserve(problem, false);
  std::vector<int64_t> result{reserve.bytes()};
  for (int64_t layer = 0; layer < layers - 1; ++layer) {
    result.push_back(reserve.offset(layer));
  }
  return result;
}

// Whether the table leaves a padded layer in training to upstream, where the GPU's time decides.
bool is_kept(int64_t cell, int64_t dtype, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden,
             int64_t layers, int64_t directions) {
  constexpr Dtype kDtypes[] = {Dtype::Float, Dtype::Half, Dtype::BFloat16};
  RnnProblem problem{};
  problem.cell = static_cast<Cell>(cell);
  problem.dtype = kDtypes[dtype];
  problem.layers = static_cast<int>(layers);
  problem.directions = static_cast<int>(directions);
  problem.hidden = hidden;
  problem.sequence = {steps, batch, inputs, nullptr, Layout::TimeMajor};
  return is_kept_in_training(problem);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_rnn_gradients, m) {
  m.def("backward", backward);
  m.def("forward", forward);
  m.def("reserve_of", reserve_of);
  m.def("is_kept", is_kept);
  m.def("products", [] {
    const int64_t products = device_on_host::fake_lt().products;
    device_on_host::fake_lt().products = 0;
    return products;
  });
}
