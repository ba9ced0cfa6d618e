// What the tests of a backward ask beside the operator: every cell, in chunks and parts of their choice.
// And cuDNN's dropout, in whose place another generator draws: the kernels ask nothing of it but its masks.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <cublasLt.h>

#include <cstring>
#include <limits>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/training/cudnn_dropout.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/reserve.h"
#include "ops/rnn/training/upstream_facts.h"

namespace {

// What a test lets it answer: whether masks can be drawn, and how many there are before it fails.
bool may_draw = true;
int64_t draws_left = 1 << 30;

// What of memory, and how few steps, a piece of a packed sequence may have: nothing, so that all are cut.
constexpr aten_ext::cuda::PieceLimits kSmallPieces{-1, 1, std::numeric_limits<int64_t>::max()};
// The same by time: padding takes longer than a piece, and there is memory for the input of all at once.
constexpr aten_ext::cuda::PieceLimits kShortPieces{int64_t{1} << 40, 1, 0};

}  // namespace

namespace aten_ext::cuda {

const char* decline_dropout(c10::Device /*device*/, const RnnProblem& /*problem*/) {
  return nullptr;
}

bool may_draw_dropout(c10::Device /*device*/, const RnnProblem& /*problem*/) {
  return may_draw;
}

// Its states begin with p and with how often they were drawn from.
CudnnDropout::CudnnDropout(double p, const at::Tensor& states, int64_t rows, int64_t columns)
    : dropout_(states.mutable_data_ptr()), count_(rows * columns) {
  handle_ = static_cast<cudnnContext*>(dropout_);
  std::memcpy(dropout_, &p, sizeof(p));
}

CudnnDropout::~CudnnDropout() = default;

int64_t CudnnDropout::bytes() const {
  return 2 * count_ + 16;
}

bool CudnnDropout::draw(void* to, cudaStream_t /*stream*/) {
  if (draws_left-- <= 0) {
    return false;
  }
  double p = 0;
  uint64_t drawn = 0;
  std::memcpy(&p, dropout_, sizeof(p));
  std::memcpy(&drawn, static_cast<char*>(dropout_) + sizeof(p), sizeof(drawn));
  uint64_t state = ++drawn * 0x9E3779B97F4A7C15u;
  std::memcpy(static_cast<char*>(dropout_) + sizeof(p), &drawn, sizeof(drawn));
  for (int64_t i = 0; i < count_; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const bool kept = static_cast<double>(state >> 11) * 0x1p-53 >= p;
    static_cast<c10::Half*>(to)[i] = kept ? c10::Half(0.01f) : c10::Half(0.0f);
  }
  std::memset(static_cast<char*>(to) + 2 * count_, 0x1c, 16);  // behind them nothing counts
  has_drawn_ = true;
  return true;
}

}  // namespace aten_ext::cuda

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
  problem.dropout = a.dropout;
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

// chunk, part: steps; 0: as the plan has it. dropout: of the forward.
std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>> backward(
    const at::Tensor& input, at::TensorList weight, int64_t weight_stride0, const at::Tensor& weight_buf,
    const at::Tensor& hx, const std::optional<at::Tensor>& cx, const at::Tensor& output,
    const std::optional<at::Tensor>& grad_output, const std::optional<at::Tensor>& grad_hy,
    const std::optional<at::Tensor>& grad_cy, int64_t mode, int64_t hidden, int64_t layers, bool batch_first,
    bool bidirectional, const at::Tensor& reserve, std::array<bool, 4> mask, int64_t chunk, int64_t part,
    bool tf32, bool one_launch, bool few_rows, at::IntArrayRef batch_sizes, double dropout, bool saved,
    bool small_pieces) {
  const std::optional<at::Tensor> none;
  const args::_cudnn_rnn_backward a{input,       weight,      weight_stride0, weight_buf, hx,   cx,
                                    output,      grad_output, grad_hy,        grad_cy,    mode, hidden,
                                    0,           layers,      batch_first,    dropout,    true, bidirectional,
                                    batch_sizes, none,        reserve,        mask};
  RnnProblem problem = problem_of_backward(a);
  if (small_pieces) {
    problem.in_training = kSmallPieces;
  }
  RnnBackwardPlan plan = plan_rnn_backward(problem, {mask[0], mask[1], mask[2], mask[3]},
                                           gpu_of(c10::Device(c10::kMeta)), saved);
  TORCH_CHECK(plan.saved == saved, "no kernel that reads what was saved");
  plan.one_launch = one_launch;
  plan.few_rows = few_rows;
  plan.tf32 = plan.tf32_results = tf32;
  plan.chunk = chunk > 0 ? chunk : plan.chunk;
  plan.part = part > 0 ? part : plan.part;
  if (one_launch && !saved) {
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
    bool bidirectional, at::IntArrayRef batch_sizes, bool saves, double dropout,
    const std::optional<at::Tensor>& dropout_state, int64_t chunk, bool small_pieces, bool short_pieces) {
  const std::optional<at::Tensor> buffer(weight_buf);
  const args::_cudnn_rnn a{
      input, weight,  weight_stride0, buffer,        hx,          cx,           mode, hidden, 0, layers,
      false, dropout, true,           bidirectional, batch_sizes, dropout_state};
  RnnProblem problem{};
  const char* const reason = problem_of(a, problem);
  TORCH_CHECK(reason == nullptr, reason);
  if (small_pieces) {
    problem.in_training = problem.of_forward = kSmallPieces;
  } else if (short_pieces) {
    problem.in_training = problem.of_forward = kShortPieces;
  }
  const Choice<RnnPlan> choice = plan_rnn(problem, gpu_of(c10::Device(c10::kMeta)));
  TORCH_CHECK(choice.reason() == nullptr, choice.reason());
  RnnPlan chosen = choice.plan();
  chosen.problem.differentiated = saves;
  chosen.saves = saves_coefficients(chosen, gpu_of(c10::Device(c10::kMeta)));
  TORCH_CHECK(chosen.saves == saves, "no kernel that saves");
  if (chosen.route == Route::Recurrence) {
    chosen.chunk = chunk > 0 ? chunk : chosen.chunk;
    chosen.pieces = pieces_of_forward(chosen);
  }
  auto ran = run(a, chosen);
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

// The kernels of dropout by themselves: what there is of x, and the bits.
std::tuple<at::Tensor, at::Tensor> first_drop(const at::Tensor& x, const at::Tensor& left, double p) {
  at::Tensor to = at::full_like(x, 7.0);
  at::Tensor kept = at::full({(x.numel() + 7) / 8}, 0xFF, at::kByte);
  const Drop params{x.const_data_ptr(), to.mutable_data_ptr(), x.numel(), scale_of_kept(p),
                    to_dtype(x.scalar_type())};
  TORCH_CHECK(launch_first_drop(params, left.const_data_ptr(), kept.mutable_data_ptr<uint8_t>(), nullptr) ==
              cudaSuccess);
  return {to, kept};
}

// In place, of x from element `offset` on.
at::Tensor drop(const at::Tensor& x, const at::Tensor& kept, double p, int64_t offset) {
  at::Tensor all = x.clone();
  void* const from = static_cast<char*>(all.mutable_data_ptr()) + offset * x.element_size();
  const Drop params{from, from, x.numel() - offset, scale_of_kept(p), to_dtype(x.scalar_type())};
  TORCH_CHECK(launch_drop(params, kept.const_data_ptr<uint8_t>(), nullptr) == cudaSuccess);
  return all;
}

void drop_sum(const at::Tensor& first, const at::Tensor& second, at::TensorList kept, double p,
              const at::Tensor& to) {
  const DropSum params{{first.const_data_ptr<float>(), second.const_data_ptr<float>()},
                       {kept[0].const_data_ptr<uint8_t>(), kept[1].const_data_ptr<uint8_t>()},
                       to.mutable_data_ptr(),
                       to.numel(),
                       scale_of_kept(p),
                       to_dtype(to.scalar_type())};
  TORCH_CHECK(launch_drop_sum(params, nullptr) == cudaSuccess);
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

RnnProblem packed_lstm(at::IntArrayRef batch_sizes, int64_t hidden, int64_t layers) {
  RnnProblem problem{};
  problem.cell = Cell::Lstm;
  problem.dtype = Dtype::Float;
  problem.layers = static_cast<int>(layers);
  problem.directions = 2;
  problem.hidden = hidden;
  problem.sequence = {static_cast<int64_t>(batch_sizes.size()), batch_sizes[0], hidden, batch_sizes.data(),
                      Layout::TimeMajor};
  return problem;
}

std::vector<std::vector<int64_t>> numbers_of(const std::vector<Piece>& pieces) {
  std::vector<std::vector<int64_t>> result;
  for (const Piece& piece : pieces) {
    result.push_back({piece.first, piece.steps, piece.batch, piece.full, piece.row[0], piece.row[1]});
  }
  return result;
}

// The first step, steps and rows of each piece of a packed sequence of an LSTM in fp32, or fp16, and where
// its directions lie.
std::vector<std::vector<int64_t>> pieces(at::IntArrayRef batch_sizes, int64_t hidden, int64_t layers,
                                         bool saved, int64_t bytes, int64_t steps, bool half, bool tf32) {
  RnnProblem problem = packed_lstm(batch_sizes, hidden, layers);
  problem.tf32_allowed = tf32;
  problem.dtype = half ? Dtype::Half : Dtype::Float;
  if (bytes >= 0) {
    problem.in_training.bytes = bytes;
    problem.in_training.steps = steps;
  }
  return numbers_of(pieces_of(problem, saved));
}

// The same of a forward that saves nothing.
std::vector<std::vector<int64_t>> pieces_alone(at::IntArrayRef batch_sizes, int64_t hidden, bool half,
                                               bool tf32) {
  RnnProblem problem = packed_lstm(batch_sizes, hidden, 1);
  problem.dtype = half ? Dtype::Half : Dtype::Float;
  problem.tf32_allowed = tf32;
  return numbers_of(pieces_of_forward_alone(problem));
}

// Whether pieces as many as possible are projected together, in training, if so many bytes are to be had.
bool are_together(at::IntArrayRef batch_sizes, int64_t hidden, bool saves, int64_t bytes) {
  RnnProblem problem = packed_lstm(batch_sizes, hidden, 1);
  problem.train = true;
  problem.in_training = kShortPieces;
  const std::vector<Piece> pieces = pieces_of(problem, saves);
  problem.in_training.bytes = bytes;
  return are_projected_together(problem, pieces, saves);
}

// Of a layer's recurrence, and of its backward: rows of a group; and of a piece of fewer rows, rows of a
// group and blocks.
std::vector<int64_t> rows_of_fewer(bool half, bool tf32, int64_t batch, int64_t hidden, int64_t fewer) {
  const std::vector<int64_t> batch_sizes(8, batch);
  RnnProblem problem = packed_lstm(batch_sizes, hidden, 1);
  problem.dtype = half ? Dtype::Half : Dtype::Float;
  problem.tf32_allowed = tf32;
  problem.sequence.batch_sizes = nullptr;
  const Gpu& gpu = gpu_of(c10::Device(c10::kMeta));
  const Choice<RnnPlan> forward = plan_rnn(problem, gpu);
  TORCH_CHECK(forward.reason() == nullptr, forward.reason());
  const RnnBackwardPlan backward = plan_rnn_backward(problem, {true, true, true, true}, gpu, false);
  TORCH_CHECK(backward.one_launch);
  const Recurrence& r = forward.plan().recurrence;
  const Recurrence of_fewer = of_fewer_rows(problem, r, fewer);
  const RecurrenceBackward back = of_fewer_rows(problem, backward.recurrence, fewer);
  return {r.rows, of_fewer.rows, of_fewer.grid, backward.recurrence.rows, back.rows, back.grid};
}

// Whether the table leaves a padded layer in training to upstream, where the GPU's time decides.
bool is_kept(int64_t cell, int64_t dtype, int64_t steps, int64_t batch, int64_t inputs, int64_t hidden,
             int64_t layers, int64_t directions, bool saves) {
  constexpr Dtype kDtypes[] = {Dtype::Float, Dtype::Half, Dtype::BFloat16};
  RnnProblem problem{};
  problem.cell = static_cast<Cell>(cell);
  problem.dtype = kDtypes[dtype];
  problem.layers = static_cast<int>(layers);
  problem.directions = static_cast<int>(directions);
  problem.hidden = hidden;
  problem.sequence = {steps, batch, inputs, nullptr, Layout::TimeMajor};
  return is_kept_in_training(problem, saves);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_rnn_gradients, m) {
  m.def(
      "backward(Tensor input, Tensor[] weight, int weight_stride0, Tensor weight_buf, Tensor hx, Tensor? cx, "
      "Tensor output, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, int mode, int hidden, int "
      "layers, "
      "bool batch_first, bool bidirectional, Tensor reserve, bool[4] mask, int chunk, int part, bool tf32, "
      "bool one_launch, bool few_rows, int[] batch_sizes, float dropout=0, bool saved=False, "
      "bool small_pieces=False) "
      "-> (Tensor, Tensor, Tensor, Tensor[])",
      backward);
  m.def(
      "forward(Tensor input, Tensor[] weight, int weight_stride0, Tensor weight_buf, Tensor hx, Tensor? cx, "
      "int mode, int hidden, int layers, bool bidirectional, int[] batch_sizes, bool saves, float dropout=0, "
      "Tensor? dropout_state=None, int chunk=0, bool small_pieces=False, bool short_pieces=False) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
      forward);
  m.def("pieces", pieces);
  m.def("pieces_alone", pieces_alone);
  m.def("are_together", are_together);
  m.def("rows_of_fewer", rows_of_fewer);
  m.def("first_drop(Tensor x, Tensor left, float p) -> (Tensor, Tensor)", first_drop);
  m.def("drop(Tensor x, Tensor kept, float p, int offset) -> Tensor", drop);
  m.def("drop_sum(Tensor first, Tensor second, Tensor[] kept, float p, Tensor(a!) to) -> ()", drop_sum);
  m.def("let_dropout(bool may, int draws) -> ()", [](bool may, int64_t draws) {
    may_draw = may;
    draws_left = draws;
  });
  m.def("reserve_of", reserve_of);
  m.def("is_kept", is_kept);
  m.def("products", [] {
    const int64_t products = device_on_host::fake_lt().products;
    device_on_host::fake_lt().products = 0;
    return products;
  });
}
