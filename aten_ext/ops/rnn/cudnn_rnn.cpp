// _cudnn_rnn on CUDA: a stack of GRU, LSTM or RNN layers.
//
// A packed sequence is padded for the kernels and its results are packed again (packed_sequence.h).
//
// It returns the output as [steps, batch, directions * H] (transposed afterwards with batch_first), hy like
// hx, cy like cx (without cx empty), and what a backward needs (training/reserve.h), in inference an empty
// `reserve` of bytes. weight_buf is what the caller gave, or a packed copy of the weights made for this call.
// Nothing of ours reads it, but a direct caller gets it, so it is made as upstream's is.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "core/gpu.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/training/cudnn_dropout.h"
#include "ops/rnn/training/reserve.h"

namespace aten_ext {

Choice<cuda::RnnPlan> cuda::choose(const args::_cudnn_rnn& a) {
  RnnProblem problem{};
  const char* const reason = problem_of(a, problem);
  if (reason != nullptr) {
    return reason;
  }
  if (problem.drops()) {
    if (const char* of_dropout = decline_dropout(a.input.device(), problem)) {
      return of_dropout;
    }
  }
  const Gpu& gpu = gpu_of(a.input.device());
  Choice<RnnPlan> choice = plan_rnn(problem, gpu);
  if (choice.reason() != nullptr || !problem.train) {
    return choice;
  }
  RnnPlan plan = choice.plan();
  plan.saves = saves_coefficients(plan, gpu);
  if (const char* of_training = decline_training(plan, gpu)) {
    return of_training;
  }
  if (plan.saves) {
    plan.chunk = choose_saving_chunk(plan);
  }
  return plan;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/cat_cuda_dispatch.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "core/launch.h"
#include "ops/rnn/cell_step.h"
#include "ops/rnn/flat_weights.h"
#include "ops/rnn/in_time.h"
#include "ops/rnn/packed_metadata.h"
#include "ops/rnn/packed_sequence.h"
#include "ops/rnn/projection.h"
#include "ops/rnn/recurrence.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/packed.h"

namespace aten_ext::cuda {
namespace {

// Weights that came as one column of all elements (problem.cpp).
at::Tensor as_matrix(const at::Tensor& w, int64_t rows) {
  return w.size(0) == rows ? w : w.view({rows, -1});
}

// The weights of one layer and direction.
struct Weights {
  at::Tensor w_ih, w_hh;
  const void* b_ih;
  const void* b_hh;

  Weights(const args::_cudnn_rnn& a, const RnnProblem& problem, int64_t index) {
    const int64_t first = index * problem.weights();
    w_ih = as_matrix(a.weight[first], problem.gates() * problem.hidden);
    w_hh = as_matrix(a.weight[first + 1], problem.gates() * problem.hidden);
    b_ih = bias(a, problem, index, 2);
    b_hh = bias(a, problem, index, 3);
  }

 private:
  // Of a layer without biases it is what weight_buf has in their place, zeros or not: cuDNN reads them.
  static const void* bias(const args::_cudnn_rnn& a, const RnnProblem& problem, int64_t index, int64_t kind) {
    if (problem.biases) {
      return a.weight[index * problem.weights() + kind].const_data_ptr();
    }
    return is_given(a.weight_buf)
               ? static_cast<const char*>(a.weight_buf->const_data_ptr()) +
                     FlatWeights(problem).offset(index, kind) * a.weight_buf->element_size()
               : nullptr;
  }
};

// The buffer that upstream makes of weights that came without one.
at::Tensor packed(const args::_cudnn_rnn& a, const RnnProblem& problem) {
  const FlatWeights flat(problem);
  at::Tensor buffer = at::empty({flat.elements()}, a.input.options());
  std::vector<at::Tensor> parts;
  parts.reserve(a.weight.size());
  for (int first = 0; first < problem.weights(); first += 2) {  // matrices, then biases
    for (size_t i = 0; i < a.weight.size(); i += problem.weights()) {
      parts.push_back(a.weight[i + first].view({-1}));
      parts.push_back(a.weight[i + first + 1].view({-1}));
    }
  }
  const int64_t given = problem.biases ? flat.elements() : flat.matrices();
  at::Tensor front = buffer.narrow(0, 0, given);
  at::cuda::cat_out(front, parts, 0);
  if (!problem.biases) {
    buffer.narrow(0, given, flat.elements() - given).zero_();
  }
  return buffer;
}

// Where a layer's output is, contiguous: the backward of those behind it needs that of all layers but the
// last.
at::Tensor new_output(const RnnPlan& plan, const at::Tensor& reserve, int64_t layer, at::IntArrayRef sizes,
                      const at::TensorOptions& options) {
  const RnnProblem& problem = plan.problem;
  if (!problem.train || layer == problem.layers - 1) {
    return at::empty(sizes, options);
  }
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) {
    strides[d] = strides[d + 1] * sizes[d + 1];
  }
  const int64_t offset =
      Reserve(problem, plan.saves).offset(layer) / static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor output = at::empty({0}, options);
  output.set_(reserve.storage(), offset, sizes, strides);
  return output;
}

// A layer at work. The first reads the call's input, the others what the layer before wrote.
struct LayerCall {
  const RnnPlan& plan;
  const args::_cudnn_rnn& call;
  int64_t index;
  Layout layout;        // of the input
  at::Tensor input[2];  // by direction: [steps, batch, features]; one tensor, unless packed or dropped
  at::Tensor hx, hy;
  at::Tensor cx, cy;  // of an LSTM; without cx it is zero
  at::Tensor y;       // [steps, batch, directions * hidden], packed [rows, directions * hidden]
  cudaStream_t stream;
  const PackedMetadata* packed;  // or nullptr
  at::Tensor reserve;            // what a backward needs; in inference empty

  const RnnProblem& problem() const {
    return plan.problem;
  }
  bool has_two_inputs() const {
    return problem().directions == 2 && !input[0].is_same(input[1]);
  }
  // In the list of weights and in the states.
  int64_t index_of(int64_t direction) const {
    return index * problem().directions + direction;
  }
  Weights weights(int64_t direction) const {
    return {call, problem(), index_of(direction)};
  }
  // Where a direction saves its coefficients; nullptr: nowhere.
  char* coefficients(int64_t direction) const {
    return plan.saves ? static_cast<char*>(reserve.mutable_data_ptr()) +
                            Reserve(problem(), true).coefficients_offset(index, direction)
                      : nullptr;
  }
};

// A sequence as a matrix of rows for one GEMM, and where the row of a step and a batch row is.
struct Rows {
  at::Tensor matrix;  // [steps * batch, features]
  int64_t step, row;  // in rows
};

Rows as_rows(const at::Tensor& sequence, Layout layout) {
  const int64_t steps = sequence.size(0);
  const int64_t batch = sequence.size(1);
  const int64_t features = sequence.size(2);
  if (layout == Layout::BatchMajor) {
    return {sequence.transpose(0, 1).view({batch * steps, features}), 1, steps};
  }
  return {sequence.contiguous().view({steps * batch, features}), batch, 1};
}

// What one launch of a sequence leaves for the next: a state, and in 16 bits also before it was rounded.
struct CarriedState {
  at::Tensor rounded;  // [directions, batch, hidden]
  at::Tensor fp32;     // the same, or undefined

  explicit CarriedState(const LayerCall& layer) {
    const RnnProblem& problem = layer.problem();
    const at::TensorOptions options = layer.y.options();
    const int64_t sizes[] = {problem.directions, problem.sequence.batch, problem.hidden};
    rounded = at::empty(sizes, options);
    if (problem.is_16_bits()) {
      fp32 = at::empty(sizes, options.dtype(at::kFloat));
    }
  }
  void* of(int64_t direction) const {
    return rounded.select(0, direction).mutable_data_ptr();
  }
  float* fp32_of(int64_t direction) const {
    return fp32.defined() ? fp32.select(0, direction).mutable_data_ptr<float>() : nullptr;
  }
};

struct Carried {
  CarriedState h;
  std::optional<CarriedState> c;

  explicit Carried(const LayerCall& layer) : h(layer) {
    if (has_cell_state(layer.problem().cell)) {
      c.emplace(layer);
    }
  }
};

// The steps from `first` on, in the order in which a direction computes them, as rows for one GEMM.
Rows rows_of_chunk(const LayerCall& layer, int64_t direction, int64_t first, int64_t steps) {
  const int64_t all = layer.problem().sequence.steps;
  const at::Tensor& input = layer.input[direction];
  if (steps == all) {
    return as_rows(input, layer.layout);
  }
  // Copied, unless it is contiguous in time.
  return as_rows(input.narrow(0, direction == 0 ? first : all - first - steps, steps), Layout::TimeMajor);
}

// The columns of an output that are a direction's.
char* columns_of(const LayerCall& layer, const at::Tensor& y, int64_t direction) {
  return static_cast<char*>(y.mutable_data_ptr()) + direction * layer.problem().hidden * y.element_size();
}

// Of a packed sequence: a chunk of its input, for each direction, and of what a layer puts out, padded.
class PaddedChunk {
 public:
  explicit PaddedChunk(const LayerCall& layer) : layer_(layer) {
    const RnnProblem& problem = layer.problem();
    const int64_t rows = layer.plan.chunk * problem.sequence.batch;
    x_[0] = layer.input[0].stride(1) == 1 ? layer.input[0] : layer.input[0].contiguous();
    x_[1] = layer.has_two_inputs() ? layer.input[1] : x_[0];  // what dropout left is contiguous
    apart_ = round_up(rows * features(), int64_t{128});  // so that each begins at a multiple of 256 bytes
    input_ = at::empty({problem.directions, apart_}, x_[0].options());
    y_ = at::empty({layer.plan.chunk, problem.sequence.batch, problem.directions * problem.hidden},
                   x_[0].options());
  }

  const at::Tensor& y() const {
    return y_;
  }
  // From one direction's input to the other's, in elements.
  int64_t apart() const {
    return apart_;
  }
  // The steps from `first` on, in the order of each direction.
  cudaError_t pad(int64_t first, int64_t steps) {
    first_ = first;
    steps_ = steps;
    return launch_pad(layer_.packed->rows,
                      {{x_[0].const_data_ptr(), x_[1].const_data_ptr()},
                       x_[0].stride(0),
                       input_.mutable_data_ptr(),
                       apart_,
                       features(),
                       static_cast<int>(y_.element_size()),
                       layer_.problem().directions,
                       {time(0), time(1)},
                       static_cast<int>(steps)},
                      layer_.stream);
  }
  Rows rows(int64_t direction) const {
    const int64_t batch = layer_.problem().sequence.batch;
    const at::Tensor elements = input_.select(0, direction).narrow(0, 0, steps_ * batch * features());
    return {elements.view({steps_ * batch, features()}), batch, 1};
  }
  // To the layer's output, and its part of hy.
  cudaError_t pack() const {
    const RnnProblem& problem = layer_.problem();
    return launch_pack(layer_.packed->rows,
                       {y_.const_data_ptr(),
                        layer_.y.mutable_data_ptr(),
                        layer_.hy.select(0, layer_.index_of(0)).mutable_data_ptr(),
                        problem.hidden,
                        static_cast<int>(y_.element_size()),
                        problem.directions,
                        {time(0), time(1)},
                        static_cast<int>(steps_)},
                       layer_.stream);
  }

 private:
  int64_t features() const {
    return x_[0].size(1);
  }
  int time(int direction) const {
    return static_cast<int>(direction == 0 ? first_ : layer_.problem().sequence.steps - first_ - steps_);
  }

  const LayerCall& layer_;
  at::Tensor x_[2];
  at::Tensor input_, y_;
  int64_t apart_;
  int64_t first_ = 0;
  int64_t steps_ = 0;
};

// Of a packed sequence: what its backward reads where there is no row.
cudaError_t pass_where_no_row_is(const LayerCall& layer) {
  const RnnProblem& problem = layer.problem();
  PassRows pass{{}, {}, static_cast<int>(problem.sequence.steps), problem.hidden, problem.directions};
  for (int d = 0; d < problem.directions; ++d) {
    pass.coefficients[d] = layer.coefficients(d);
  }
  return launch_pass_coefficients(layer.packed->rows, pass, problem.dtype, problem.cell, layer.stream);
}

// Of a packed sequence, so many steps of its projections from `first` on in each direction's order.
cudaError_t hold_where_no_row_is(const LayerCall& layer, const float* const (&projected)[2], int64_t first,
                                 int64_t steps) {
  const RnnProblem& problem = layer.problem();
  HoldRows hold{{}, {}, static_cast<int>(steps), problem.hidden, problem.directions};
  for (int d = 0; d < problem.directions; ++d) {
    hold.projection[d] = const_cast<float*>(projected[d]);
    hold.first[d] = static_cast<int>(d == 0 ? first : problem.sequence.steps - first - steps);
  }
  return launch_hold(layer.packed->rows, hold, layer.stream);
}

// The projections of all directions, then one launch: for all steps, or for one chunk of them after the
// other.
cudaError_t run_recurrence(const LayerCall& layer) {
  const RnnProblem& problem = layer.problem();
  const int64_t all = problem.sequence.steps;
  const int64_t chunk = layer.plan.chunk;
  RecurrenceParams p{};
  p.directions = problem.directions;
  p.cell = problem.cell;
  p.dtype = problem.dtype;
  p.batch = static_cast<int>(problem.sequence.batch);
  p.hidden = static_cast<int>(problem.hidden);
  p.plan = layer.plan.recurrence;
  std::optional<PaddedChunk> padded;
  if (layer.packed != nullptr) {
    padded.emplace(layer);
  }
  const at::Tensor& y = padded.has_value() ? padded->y() : layer.y;
  p.y_step = y.stride(0);
  p.y_row = y.stride(1);
  const int64_t gates = problem.gates() * problem.hidden;
  const int64_t rows_stride = padded.has_value() ? padded->apart() : 0;
  InputProjection projection{{}, {}, p.directions, all * p.batch, rows_stride, layer.plan.tf32};
  for (int64_t direction = 0; direction < p.directions; ++direction) {
    const Weights weights = layer.weights(direction);
    projection.w[direction] = weights.w_ih;
    p.direction[direction].w_hh = weights.w_hh.const_data_ptr();
    p.direction[direction].b_ih = weights.b_ih;
    p.direction[direction].b_hh = weights.b_hh;
  }
  const at::Tensor memory(at::detail::empty_cuda({projection_elements(chunk * p.batch, gates, p.directions)},
                                                 at::kFloat, layer.y.device(), std::nullopt));
  at::Tensor words;
  if (p.plan.words > 0) {
    // Of this call alone: two streams, two threads or two replays of different graphs share none of it.
    words = at::empty({p.plan.words}, layer.y.options().dtype(at::kLong));
    p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  }
  std::optional<Carried> before, after;
  for (int64_t first = 0; first < all; first += chunk, before = std::move(after)) {
    p.steps = std::min(chunk, all - first);
    const bool last = first + p.steps == all;
    if (!last || padded.has_value()) {  // hy of a packed sequence is packed with its output
      after.emplace(layer);
    }
    if (padded.has_value()) {
      if (const cudaError_t error = padded->pad(first, p.steps); error != cudaSuccess) {
        return error;
      }
    }
    const auto rows_of = [&](int64_t direction) {
      return padded.has_value() ? padded->rows(direction) : rows_of_chunk(layer, direction, first, p.steps);
    };
    const Rows rows = rows_of(0);
    projection.rows[0] = rows.matrix;
    const bool same_rows =
        p.directions == 1 || (p.steps == all && !padded.has_value() && !layer.has_two_inputs());
    projection.rows[1] = same_rows ? rows.matrix : rows_of(1).matrix;
    p.projection_step = rows.step * gates;
    p.projection_row = rows.row * gates;
    const float* projected[2] = {};
    if (!project_input(projection, memory, projected, layer.stream)) {
      return cudaErrorNotSupported;
    }
    if (layer.packed != nullptr && layer.cy.defined()) {
      const cudaError_t error = hold_where_no_row_is(layer, projected, first, p.steps);
      if (error != cudaSuccess) {
        return error;
      }
    }
    for (int64_t direction = 0; direction < p.directions; ++direction) {
      const int64_t index = layer.index_of(direction);
      const int64_t time = direction == 0 ? first : all - first - p.steps;
      RecurrenceDirection& d = p.direction[direction];
      d.projection = projected[direction];
      d.h0 = first == 0 ? layer.hx.select(0, index).const_data_ptr() : before->h.of(direction);
      d.h0_fp32 = first == 0 ? nullptr : before->h.fp32_of(direction);
      d.hy =
          last && !padded.has_value() ? layer.hy.select(0, index).mutable_data_ptr() : after->h.of(direction);
      d.hy_fp32 = last ? nullptr : after->h.fp32_of(direction);
      if (layer.cy.defined()) {
        const bool given = layer.cx.defined();
        d.c0 = first > 0 ? before->c->of(direction)
               : given   ? layer.cx.select(0, index).const_data_ptr()
                         : nullptr;
        d.c0_fp32 = first == 0 ? nullptr : before->c->fp32_of(direction);
        d.cy = last ? layer.cy.select(0, index).mutable_data_ptr() : after->c->of(direction);
        d.cy_fp32 = last ? nullptr : after->c->fp32_of(direction);
      }
      const int64_t of_y = padded.has_value() ? 0 : time;  // where its first step is
      d.y = columns_of(layer, y, direction) + of_y * y.stride(0) * y.element_size();
      if (layer.plan.saves) {
        d.coefficients = layer.coefficients(direction) + time * p.batch * coefficients_of(problem.cell) *
                                                             problem.hidden * layer.y.element_size();
      }
    }
    if (words.defined()) {
      words.zero_();
    }
    if (const cudaError_t error = launch_recurrence(p, layer.stream); error != cudaSuccess) {
      return error;
    }
    if (padded.has_value()) {
      if (const cudaError_t error = padded->pack(); error != cudaSuccess) {
        return error;
      }
    }
  }
  return layer.packed != nullptr && layer.plan.saves ? pass_where_no_row_is(layer) : cudaSuccess;
}

// A few steps: one launch for each, with its projection. Between them the state is what was written to y, in
// 16 bits for 16-bit tensors (docs/numerics.md).
cudaError_t run_steps(const LayerCall& layer) {
  const RnnProblem& problem = layer.problem();
  at::Tensor x[2];
  for (int64_t direction = 0; direction < problem.directions; ++direction) {
    const bool again = direction == 1 && !layer.has_two_inputs();
    const at::Tensor& input = layer.input[direction];
    x[direction] = again ? x[0] : layer.layout == Layout::Strided ? input.contiguous() : input;
  }
  CellParams p{};
  p.directions = problem.directions;
  p.cell = problem.cell;
  p.dtype = problem.dtype;
  p.batch = static_cast<int>(problem.sequence.batch);
  p.input = static_cast<int>(x[0].size(2));
  p.hidden = static_cast<int>(problem.hidden);
  p.x_row = x[0].stride(1);
  p.h_row = problem.hidden;
  p.y_row = layer.y.stride(1);
  for (int64_t direction = 0; direction < p.directions; ++direction) {
    const Weights weights = layer.weights(direction);
    const int64_t index = layer.index_of(direction);
    p.direction[direction] = {weights.w_ih.const_data_ptr(),
                              weights.w_hh.const_data_ptr(),
                              weights.b_ih,
                              weights.b_hh,
                              nullptr,
                              layer.hx.select(0, index).const_data_ptr(),
                              layer.hy.select(0, index).mutable_data_ptr(),
                              nullptr};
    if (layer.cy.defined()) {
      p.carried[direction].c = layer.cx.defined() ? layer.cx.select(0, index).const_data_ptr() : nullptr;
      p.carried[direction].cy = layer.cy.select(0, index).mutable_data_ptr();
    }
  }
  at::Tensor carried;  // the cell state between two steps, in place
  if (layer.cy.defined() && problem.is_16_bits() && problem.sequence.steps > 1) {
    carried = at::empty({problem.directions, problem.sequence.batch, problem.hidden},
                        layer.y.options().dtype(at::kFloat));
  }
  const int64_t steps = problem.sequence.steps;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t direction = 0; direction < p.directions; ++direction) {
      const int64_t time = direction == 0 ? step : steps - 1 - step;
      CellDirection& d = p.direction[direction];
      CellCarried& c = p.carried[direction];
      if (step > 0) {  // the state is what the step before wrote
        d.h = d.y;
        c.c = c.cy;
        c.c_fp32 = c.cy_fp32;
      }
      c.cy_fp32 = carried.defined() ? carried.select(0, direction).mutable_data_ptr<float>() : nullptr;
      const at::Tensor& of = x[direction];
      d.x = static_cast<const char*>(of.const_data_ptr()) + time * of.stride(0) * of.element_size();
      d.y = columns_of(layer, layer.y, direction) + time * layer.y.stride(0) * layer.y.element_size();
    }
    if (const cudaError_t error = launch_cell(p, layer.plan.step[layer.index > 0], layer.stream);
        error != cudaSuccess) {
      return error;
    }
    p.h_row = p.y_row;
  }
  return cudaSuccess;
}

// `x`: by direction.
cudaError_t run_layer(LayerCall& layer, const at::Tensor (&x)[2]) {
  const RnnProblem& problem = layer.problem();
  const int64_t width = problem.directions * problem.hidden;
  const int64_t padded[] = {problem.sequence.steps, problem.sequence.batch, width};
  const int64_t packed[] = {x[0].size(0), width};
  layer.input[0] = x[0];
  layer.input[1] = x[1];
  layer.y =
      new_output(layer.plan, layer.reserve, layer.index,
                 layer.packed != nullptr ? at::IntArrayRef(packed) : at::IntArrayRef(padded), x[0].options());
  const cudaError_t error = layer.plan.route == Route::Recurrence ? run_recurrence(layer) : run_steps(layer);
  layer.input[0].reset();
  layer.input[1].reset();
  return error;
}

// What the next layer reads of this one's output. cuDNN draws a mask for each direction of that layer, one
// after the other, over all that this one put out. False: it did not draw.
bool drop_output(const LayerCall& layer, CudnnDropout& dropout, at::Tensor (&x)[2]) {
  const RnnProblem& problem = layer.problem();
  const Reserve reserve(problem, layer.plan.saves);
  x[0].reset();
  x[1].reset();
  const at::Tensor drawn = at::empty({dropout.bytes()}, layer.reserve.options());
  for (int direction = 0; direction < problem.directions; ++direction) {
    if (!dropout.draw(drawn.mutable_data_ptr(), layer.stream)) {
      return false;
    }
    x[direction] = at::empty(layer.y.sizes(), layer.y.options());
    const Drop drop{layer.y.const_data_ptr(), x[direction].mutable_data_ptr(), layer.y.numel(),
                    scale_of_kept(problem.dropout), problem.dtype};
    uint8_t* const kept =
        layer.reserve.mutable_data_ptr<uint8_t>() + reserve.kept_offset(layer.index + 1, direction);
    C10_CUDA_CHECK(launch_first_drop(drop, drawn.const_data_ptr(), kept, layer.stream));
  }
  return true;
}

}  // namespace

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>> run(const args::_cudnn_rnn& a,
                                                                                const RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  const Sequence& sequence = problem.sequence;
  const c10::cuda::CUDAGuard guard(a.input.device());
  const at::TensorOptions options = a.input.options();
  const bool lstm = has_cell_state(problem.cell);
  const int64_t state_sizes[] = {problem.layers * problem.directions, sequence.batch, problem.hidden};
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  std::optional<CudnnDropout> dropout;
  if (problem.drops()) {
    if (!may_draw_dropout(a.input.device(), problem)) {
      return kRefused;
    }
    dropout.emplace(problem.dropout, *a.dropout_state, sequence.rows(), problem.directions * problem.hidden);
    if (!dropout->is_ready()) {
      return kRefused;
    }
  }
  std::optional<PackedMetadata> packed_metadata;
  if (sequence.is_packed()) {
    packed_metadata.emplace(sequence, options, stream);
    if (is_refusal(packed_metadata->error)) {
      return kRefused;
    }
    C10_CUDA_CHECK(packed_metadata->error);
  }
  LayerCall layer{plan,
                  a,
                  0,
                  sequence.layout,
                  {},
                  a.hx,
                  at::empty(state_sizes, options),
                  lstm && is_given(a.cx) ? *a.cx : at::Tensor(),
                  lstm ? at::empty(state_sizes, options) : at::Tensor(),
                  {},
                  stream,
                  packed_metadata.has_value() ? &*packed_metadata : nullptr,
                  problem.train
                      ? at::empty({1, Reserve(problem, plan.saves).bytes()}, options.dtype(at::kByte))
                      : at::empty({0}, options.dtype(at::kByte))};
  at::Tensor x[2] = {in_time(a.input, problem), {}};
  x[1] = x[0];
  for (; layer.index < problem.layers; ++layer.index) {
    cudaError_t error = run_layer(layer, x);
    if (error == cudaSuccess && dropout.has_value() && layer.index < problem.layers - 1) {
      error = drop_output(layer, *dropout, x) ? cudaSuccess : cudaErrorNotSupported;
    } else {
      x[0] = x[1] = layer.y;
    }
    if (is_refusal(error)) {
      // Upstream would draw other masks from states that have moved on.
      TORCH_CHECK(
          !dropout.has_value() || !dropout->has_drawn(),
          "[_cudnn_rnn] expected the GPU to take the launches behind dropout, as it took those before it, "
          "got a refusal");
      return kRefused;  // results are fresh: nobody has seen what earlier launches wrote
    }
    C10_CUDA_CHECK(error);
    layer.layout = Layout::TimeMajor;
  }
  return std::tuple{as_given(layer.y, problem, a.input.dim()), layer.hy,
                    layer.cx.defined() ? layer.cy : at::empty({0}, options), layer.reserve,
                    is_given(a.weight_buf) ? *a.weight_buf : packed(a, problem)};
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
