// Recurrent layers on the CPU: when.
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/headeronly/version.h>

#include "core/checks.h"
#include "core/composite.h"
#include "core/denormals.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/cpu/call.h"
#include "ops/rnn/cpu/threads.h"

namespace aten_ext::cpu {
namespace {

// Whether upstream runs a packed LSTM of equal lengths by oneDNN, as one that is not packed. Seen in 2.13,
// and not in 2.11; what 2.12 does was not looked at, and going upstream there is safe.
constexpr bool kPackedIsOnednns = TORCH_VERSION_MAJOR * 1000 + TORCH_VERSION_MINOR >= 2012;

// nullptr: the machine has none.
const RnnKernels* kernels_of_machine() {
#if defined(__x86_64__)
  static const RnnKernels* const known = [] {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX512" ? &AVX512::kRnnKernels
           : capability == "AVX2" ? &AVX2::kRnnKernels
                                  : nullptr;
  }();
  return known;
#else
  return nullptr;
#endif
}

bool is_differentiable(const at::Tensor& t) {
  return t.requires_grad();
}

const char* decline_tensor(const at::Tensor& t, const at::Tensor& data) {
  if (const char* reason = cuda::decline_beside(t, data)) {
    return reason;
  }
  return t._fw_grad(/*level=*/0).defined() ? "forward-mode differentiation" : nullptr;
}

const char* decline_params(const RnnArguments& a, int64_t input, int64_t hidden) {
  const int64_t each = a.has_biases ? 4 : 2;
  const int64_t directions = a.bidirectional ? 2 : 1;
  if (a.num_layers < 1 || static_cast<int64_t>(a.params.size()) != a.num_layers * directions * each) {
    return "weight list that does not fit the layers";
  }
  const int64_t rows = gates_of(a.cell) * hidden;
  for (int64_t i = 0; i < static_cast<int64_t>(a.params.size()); ++i) {
    const at::Tensor& t = a.params[i];
    if (const char* reason = decline_tensor(t, a.data)) {
      return reason;
    }
    const int64_t layer = i / each / directions;
    const int64_t columns = i % each == 1 ? hidden : layer == 0 ? input : directions * hidden;
    if (!(i % each < 2 ? cuda::has_shape(t, {rows, columns}) : cuda::has_shape(t, {rows}))) {
      return "weights that do not fit";
    }
  }
  return nullptr;
}

const char* decline(const RnnArguments& a) {
  if (kernels_of_machine() == nullptr) {
    return "CPU without AVX2";
  }
  if (!a.data.defined()) {
    return "undefined tensor";
  }
  if (a.data.scalar_type() != at::kFloat && a.data.scalar_type() != at::kBFloat16) {
    return "dtype other than float32, bfloat16";
  }
  if (const char* reason = decline_tensor(a.data, a.data)) {
    return reason;
  }
  const bool packed = a.batch_sizes != nullptr;
  if (a.data.dim() != (packed ? 2 : 3)) {
    return packed ? "packed input that is not two-dimensional" : "input that is not three-dimensional";
  }
  if (packed && (!a.batch_sizes->defined() || a.batch_sizes->dim() != 1 || !a.batch_sizes->is_contiguous() ||
                 a.batch_sizes->scalar_type() != at::kLong || !a.batch_sizes->device().is_cpu())) {
    return "batch sizes that are no list on the host";
  }
  if (a.states.size() != (a.cell == RnnCell::Lstm ? 2U : 1U)) {
    return "initial state that does not fit";
  }
  for (const at::Tensor& state : a.states) {
    if (const char* reason = decline_tensor(state, a.data)) {
      return reason;
    }
    if (state.dim() != 3 || state.sizes() != a.states[0].sizes() ||
        state.size(0) != a.num_layers * (a.bidirectional ? 2 : 1) ||
        (!packed && state.size(1) != a.data.size(a.batch_first ? 0 : 1))) {
      return "initial state that does not fit";
    }
  }
  if (a.data.numel() == 0 || a.states[0].numel() == 0 || (packed && a.batch_sizes->numel() == 0)) {
    return "empty input";
  }
  if (const char* reason = decline_params(a, a.data.size(-1), a.states[0].size(2))) {
    return reason;
  }
  if (!(a.dropout >= 0 && a.dropout <= 1)) {
    return "dropout that is no probability";
  }
  if (at::autocast::is_autocast_enabled(at::kCPU)) {
    return "autocast";
  }
  return has_less_precision() ? "products of float32 in less precision" : nullptr;
}

}  // namespace

bool has_less_precision() {
  const auto precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision != at::Float32Precision::NONE && precision != at::Float32Precision::IEEE;
}

const char* decline_mode(int64_t multiplications) {
  // MKL was seen to share 8 x 32 x 32, and nothing smaller.
  constexpr int64_t kOneThread = 4096;
  return multiplications > kOneThread && pool_flushes_otherwise() ? "threads that flush denormals otherwise"
                                                                  : nullptr;
}

bool has_rnn_kernels() {
  return kernels_of_machine() != nullptr;
}

const RnnKernels& rnn_kernels() {
  return *kernels_of_machine();
}

Choice<CpuRnnPlan> choose_rnn(const RnnArguments& a) {
  if (const char* reason = decline(a)) {
    return reason;
  }
  CpuRnnPlan plan;
  plan.cell = a.cell;
  plan.layers = a.num_layers;
  plan.directions = a.bidirectional ? 2 : 1;
  plan.biases = a.has_biases;
  plan.batch_first = a.batch_first;
  plan.packed = a.batch_sizes != nullptr;
  plan.dropout = a.train && a.num_layers > 1 ? a.dropout : 0;
  plan.differentiated =
      c10::GradMode::is_enabled() &&
      (is_differentiable(a.data) || std::any_of(a.states.begin(), a.states.end(), is_differentiable) ||
       std::any_of(a.params.begin(), a.params.end(), is_differentiable));
  plan.bfloat16 = a.data.scalar_type() == at::kBFloat16;
  const int64_t steps = plan.packed ? a.batch_sizes->size(0) : a.data.size(a.batch_first ? 1 : 0);
  const bool even = !plan.packed || a.data.size(0) == steps * a.states[0].size(1);  // of equal lengths
  const bool of_onednn = a.cell == RnnCell::Lstm && (!plan.packed || (kPackedIsOnednns && even));
  if (of_onednn && plan.bfloat16) {
    return "LSTM of bfloat16, which oneDNN runs";
  }
  if (of_onednn && !plan.differentiated) {
    return "LSTM in inference, which oneDNN runs";
  }
  const RnnWork work{a.cell,        plan.directions, steps, a.states[0].size(1), a.states[0].size(2),
                     plan.bfloat16, a.data.size(-1)};
  plan.threads = share_work(work);
  if (of_onednn && is_large_lstm_step(work)) {
    return "LSTM of large steps, which oneDNN runs as fast";
  }
  if (of_onednn && !beats_onednn(work, plan.threads)) {
    return "LSTM on one thread, which oneDNN runs as fast";
  }
  if (even && is_all_product(work)) {
    return "few steps of large products";
  }
  if (!is_worth_widening(work, plan.layers) || !beats_narrow_products(work, plan.threads)) {
    return "steps of bfloat16, whose products are faster in 16 bits";
  }
  const int64_t rows = a.data.numel() / work.inputs;
  if (const char* reason =
          decline_mode(rows * gates_of(a.cell) * work.hidden * std::max(work.inputs, work.hidden))) {
    return reason;
  }
  plan.projects_as_given = a.batch_first && !plan.packed && !plan.differentiated &&
                           plan.directions * gates_of(a.cell) * work.hidden < work.inputs;
  RnnWork typical = work;  // a packed sequence's steps have fewer rows than the first
  typical.batch = plan.packed ? std::clamp<int64_t>(a.data.size(0) / steps, 1, work.batch) : work.batch;
  plan.panels = is_worth_packing(typical, plan.threads);
  return plan;
}

std::string CpuRnnPlan::describe() const {
  std::string text = differentiated ? "with a node for the backward, " : "";
  text +=
      panels ? "product and gates of a step in one pass" : "a GEMM and a pass over the gates for each step";
  text += threads.by_units     ? ", threads share units"
          : threads.parts == 0 ? ", one thread"
                               : ", threads share rows";
  return text;
}

}  // namespace aten_ext::cpu
