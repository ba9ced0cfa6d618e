// What PyTorch passes (aten/src/ATen/native/cudnn/RNN.cpp): `weight` has, for each layer and then each
// direction, weight_stride0 tensors, w_ih [gates * H, I], w_hh [gates * H, H] and, if 4, b_ih and b_hh [gates
// * H]; hx is [layers * directions, batch, H] and contiguous, and so is cx, which an LSTM alone has. Without
// cx its cell state begins at zero, and none is returned.
#include "ops/rnn/problem.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>

#include "args.h"
#include "core/capture.h"
#include "core/declined.h"
#include "core/to_dtype.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/flat_weights.h"

namespace aten_ext::cuda {
namespace {

// Upstream computes from weight_buf where it is given, and does not look at the list. Both mean the same
// where the list's tensors are views of the buffer, each at its place.
const char* decline_buffer(const args::_cudnn_rnn& a, const RnnProblem& problem) {
  const at::Tensor& buffer = *a.weight_buf;
  if (const char* reason = decline_beside(buffer, a.input)) {
    return reason;
  }
  const FlatWeights flat(problem);
  const c10::StorageImpl* const storage = buffer.storage().unsafeGetStorageImpl();
  bool same = buffer.is_contiguous() && buffer.numel() == flat.elements();
  for (size_t i = 0; same && i < a.weight.size(); ++i) {
    const auto index = static_cast<int64_t>(i) / a.weight_stride0;
    const auto kind = static_cast<int64_t>(i) % a.weight_stride0;
    const at::Tensor& w = a.weight[i];
    same = w.storage().unsafeGetStorageImpl() == storage &&
           w.storage_offset() == buffer.storage_offset() + flat.offset(index, kind);
  }
  return same ? nullptr : "weights that are not those of weight_buf";
}

// Shapes of the weight list: what upstream would accept, no more. With weight_buf, of which they are views,
// that is also one column of all elements: what PyTorch's autocast makes of its 16-bit copies.
const char* decline_weights(const args::_cudnn_rnn& a, const RnnProblem& problem, bool saved) {
  const int64_t stride = a.weight_stride0;
  const int64_t hidden = problem.hidden;
  const int64_t gates = problem.gates() * hidden;
  const bool flattened = is_given(a.weight_buf);
  if ((stride != 2 && stride != 4) || problem.layers < 1 ||
      static_cast<int64_t>(a.weight.size()) != a.num_layers * problem.directions * stride) {
    return "weight list that does not fit the layers";
  }
  for (size_t i = 0; i < a.weight.size(); ++i) {
    const at::Tensor& w = a.weight[i];
    if (const char* reason = decline_beside(w, a.input)) {
      return reason;
    }
    const auto kind = static_cast<int64_t>(i) % stride;
    const bool first_layer = static_cast<int64_t>(i) < problem.directions * stride;
    const int64_t columns = first_layer ? problem.sequence.features : problem.directions * hidden;
    const int64_t count = gates * (kind == 0 ? columns : kind == 1 ? hidden : 1);
    if (!((flattened || saved) && has_shape(w, {count, 1})) && !(kind == 0   ? has_shape(w, {gates, columns})
                                                                 : kind == 1 ? has_shape(w, {gates, hidden})
                                                                             : has_shape(w, {gates}))) {
      return "weight list that does not fit the layers";
    }
    if (!w.is_contiguous()) {
      return "weights that are not contiguous";
    }
  }
  return flattened ? decline_buffer(a, problem) : nullptr;
}

constexpr const char* kOtherPackedRows = "packed sequence whose batch sizes do not fit the input";

const char* decline_packed(at::IntArrayRef batch_sizes, int64_t rows) {
  int64_t sum = 0;
  int64_t before = batch_sizes[0];
  for (const int64_t size : batch_sizes) {
    if (size < 1 || size > before) {
      return kOtherPackedRows;
    }
    sum += size;
    before = size;
  }
  return sum != rows ? kOtherPackedRows : nullptr;
}

// Whether dimensions, given from the slowest to the fastest, lie contiguously.
bool lie_as(const at::Tensor& t, std::initializer_list<int64_t> dims) {
  int64_t expected = 1;
  for (auto dim = std::rbegin(dims); dim != std::rend(dims); ++dim) {
    if (t.size(*dim) != 1 && t.stride(*dim) != expected) {
      return false;
    }
    expected *= t.size(*dim);
  }
  return true;
}

Layout layout_of(const at::Tensor& input, bool batch_first) {
  const int64_t time = batch_first ? 1 : 0;
  if (lie_as(input, {time, 1 - time, 2})) {
    return Layout::TimeMajor;
  }
  if (lie_as(input, {1 - time, time, 2})) {
    return Layout::BatchMajor;
  }
  return input.stride(2) == 1 ? Layout::Rows : Layout::Strided;
}

// cuDNN counts a tensor's elements in 32 bits, and its states are what PyTorch made for it. A backward draws
// nothing.
const char* decline_dropped(const args::_cudnn_rnn& a, const RnnProblem& problem, bool saved) {
  const auto p = static_cast<float>(a.dropout);  // as cuDNN gets it
  if (!(p > 0.0f && p < 1.0f)) {
    return "dropout that is not between 0 and 1";
  }
  if (problem.sequence.rows() * problem.directions * problem.hidden > std::numeric_limits<int32_t>::max()) {
    return "sizes beyond 32 bits";
  }
  if (saved) {
    return nullptr;
  }
  const std::optional<at::Tensor>& states = a.dropout_state;
  return is_given(states) && states->layout() == at::kStrided && states->scalar_type() == at::kByte &&
                 states->dim() == 1 && states->is_contiguous() && states->device() == a.input.device()
             ? nullptr
             : "dropout without cuDNN's states";
}

// Autograd stands above this, and has left what it goes by.
bool is_differentiated(const args::_cudnn_rnn& a) {
  const auto requires_grad = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  return c10::GradMode::is_enabled() &&
         (requires_grad(a.input) || std::any_of(a.weight.begin(), a.weight.end(), requires_grad) ||
          requires_grad(a.hx) || (is_given(a.cx) && requires_grad(*a.cx)));
}

}  // namespace

uint64_t fingerprint_of(const args::_cudnn_rnn& a) {
  Fingerprint print;
  const bool drops = a.train && a.num_layers > 1 && a.dropout != 0.0;
  if (drops || !a.batch_sizes.empty() || !print.add(a.input)) {
    return 0;
  }
  const bool flags[] = {
      a.batch_first,
      a.train,
      a.bidirectional,
      is_given(a.cx),
      is_given(a.weight_buf),
      a.train && is_differentiated(a),
      a.input.scalar_type() == at::kFloat && at::globalContext().allowTF32CuDNN(at::Float32Op::RNN)};
  uint64_t bits = 1;
  for (const bool flag : flags) {
    bits = bits << 1 | uint64_t{flag};
  }
  for (const int64_t number : {a.mode, a.hidden_size, a.proj_size, a.num_layers, a.weight_stride0}) {
    print.add(static_cast<uint64_t>(number));
  }
  print.add(bits);
  return print.value();
}

const char* problem_of(const args::_cudnn_rnn& a, RnnProblem& problem, bool saved) {
  if (a.mode < static_cast<int64_t>(Cell::RnnRelu) || a.mode > static_cast<int64_t>(Cell::Gru)) {
    return "unknown mode";
  }
  problem.cell = static_cast<Cell>(a.mode);
  if (a.proj_size != 0) {
    return "projection";
  }
  if (is_given(a.cx) && !has_cell_state(problem.cell)) {
    return "cell state";
  }
  const at::Tensor& input = a.input;
  if (!input.defined() || !a.hx.defined()) {
    return "undefined tensor";
  }
  if (!is_rnn_dtype(input)) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (const char* reason = decline_beside(input, input)) {
    return reason;
  }
  for (const at::Tensor* state : {&a.hx, is_given(a.cx) ? &*a.cx : &a.hx}) {
    if (const char* reason = decline_beside(*state, input)) {
      return reason;
    }
  }
  const bool packed = !a.batch_sizes.empty();
  if (input.dim() != (packed ? 2 : 3)) {
    return packed ? kOtherPackedRows : "input that is not three-dimensional";
  }
  if (input.numel() == 0 || a.hidden_size < 1) {
    return "empty input";
  }
  problem.dtype = to_dtype(input.scalar_type());
  problem.tf32_allowed =
      problem.dtype == Dtype::Float && at::globalContext().allowTF32CuDNN(at::Float32Op::RNN);
  problem.biases = a.weight_stride0 == 4;
  problem.batch_first = a.batch_first && !packed;
  problem.given_packed = packed;
  problem.train = a.train;
  problem.differentiated = a.train && is_differentiated(a);
  problem.captured = is_capturing(input.device());
  problem.dropout = a.dropout;
  problem.layers = static_cast<int>(a.num_layers);
  problem.directions = a.bidirectional ? 2 : 1;
  problem.hidden = a.hidden_size;
  if (packed) {
    if (const char* reason = decline_packed(a.batch_sizes, input.size(0))) {
      return reason;
    }
    // Rows that all have every step are a padded sequence, in two dimensions.
    const bool equal = a.batch_sizes.front() == a.batch_sizes.back();
    const Layout layout = !equal || input.is_contiguous() ? Layout::TimeMajor
                          : input.stride(1) == 1          ? Layout::Rows
                                                          : Layout::Strided;
    problem.sequence = {static_cast<int64_t>(a.batch_sizes.size()), a.batch_sizes[0], input.size(1),
                        equal ? nullptr : a.batch_sizes.data(), layout};
  } else {
    problem.sequence = {input.size(a.batch_first ? 1 : 0), input.size(a.batch_first ? 0 : 1), input.size(2),
                        nullptr, layout_of(input, a.batch_first)};
  }
  if (problem.drops()) {
    if (const char* reason = decline_dropped(a, problem, saved)) {
      return reason;
    }
  }
  if (const char* reason = decline_weights(a, problem, saved)) {
    return reason;
  }
  const auto is_state = [&](const at::Tensor& state) {
    return has_shape(state, {a.num_layers * problem.directions, problem.sequence.batch, problem.hidden}) &&
           state.is_contiguous();
  };
  if (!is_state(a.hx) || (is_given(a.cx) && !is_state(*a.cx))) {
    return "initial state that is not contiguous or of another size";
  }
  return nullptr;
}

}  // namespace aten_ext::cuda
