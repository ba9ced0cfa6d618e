// _cudnn_rnn on CUDA: a stack of GRU, LSTM or RNN layers.
//
// A packed sequence is padded for the kernels and its results are packed again, piece by piece (pieces.h,
// packed_sequence.h).
//
// It returns the output as [steps, batch, directions * H] (transposed afterwards with batch_first), hy like
// hx, cy like cx (without cx empty), and what a backward needs (training/reserve.h), in inference an empty
// `reserve` of bytes. weight_buf is what the caller gave, or a packed copy of the weights made for this call.
// Nothing of ours reads it, but a direct caller gets it, so it is made as upstream's is.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "core/declined.h"
#include "core/gpu.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/training/cudnn_dropout.h"
#include "ops/rnn/training/reserve.h"

namespace aten_ext {

Choice<cuda::RnnPlan> cuda::choose(const args::_cudnn_rnn& a) {
  // What is declined outside of a graph is so in one too, where launches cost nothing.
  thread_local Declined declined;
  const uint64_t fingerprint = fingerprint_of(a);
  if (const char* known = declined.reason(fingerprint)) {
    return known;
  }
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
  const Choice<RnnPlan> choice = plan_rnn(problem, gpu);
  if (choice.reason() != nullptr) {
    if (!problem.captured) {
      declined.add(fingerprint, choice.reason());
    }
    return choice;
  }
  RnnPlan plan = choice.plan();
  if (problem.train) {
    plan.saves = saves_coefficients(plan, gpu);
    if (const char* of_training = decline_training(plan, gpu)) {
      return of_training;
    }
    if (plan.saves) {
      plan.chunk = choose_saving_chunk(plan);
    }
  }
  if (plan.route == Route::Recurrence) {
    plan.pieces = pieces_of_forward(plan);
    if (const char* of_padding = decline_padding(plan)) {
      return of_padding;
    }
  }
  return plan;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/launch.h"
#include "ops/rnn/cell_step.h"
#include "ops/rnn/cudnn_handle.h"
#include "ops/rnn/flat_weights.h"
#include "ops/rnn/in_time.h"
#include "ops/rnn/layer_call.h"
#include "ops/rnn/layer_recurrence.h"
#include "ops/rnn/pack_weights.h"
#include "ops/rnn/packed_metadata.h"
#include "ops/rnn/training/dropout.h"

namespace aten_ext::cuda {
namespace {

// What upstream puts into one buffer where the weights came without one.
std::vector<WeightPart> parts_of_weights(const args::_cudnn_rnn& a, const RnnProblem& problem,
                                         const at::Tensor& buffer) {
  std::vector<WeightPart> parts;
  parts.reserve(a.weight.size() + 1);
  for (int first = 0; first < problem.weights(); first += 2) {  // matrices, then biases
    for (size_t i = 0; i < a.weight.size(); i += problem.weights()) {
      for (int kind = first; kind < first + 2; ++kind) {
        const at::Tensor& weight = a.weight[i + kind];
        parts.push_back({weight.const_data_ptr(), static_cast<int64_t>(weight.nbytes())});
      }
    }
  }
  if (!problem.biases) {
    const int64_t matrices = FlatWeights(problem).matrices() * buffer.element_size();
    parts.push_back({nullptr, static_cast<int64_t>(buffer.nbytes()) - matrices});
  }
  return parts;
}

// Where a layer's output is, contiguous: the backward of those behind it needs that of all layers but the
// last.
at::Tensor new_output(const LayerCall& layer, at::IntArrayRef sizes, const at::TensorOptions& options) {
  const RnnProblem& problem = layer.problem();
  if (!problem.train || layer.index == problem.layers - 1) {
    return at::empty(sizes, options);
  }
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t d = sizes.size() - 1; d-- > 0;) {
    strides[d] = strides[d + 1] * sizes[d + 1];
  }
  const int64_t offset = layer.places.offset(layer.index) / static_cast<int64_t>(options.dtype().itemsize());
  at::Tensor output = at::empty({0}, options);
  output.set_(layer.reserve.storage(), offset, sizes, strides);
  return output;
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
    const LayerWeights weights = layer.weights(direction);
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
  layer.y = new_output(layer, layer.packed != nullptr ? at::IntArrayRef(packed) : at::IntArrayRef(padded),
                       x[0].options());
  const cudaError_t error = layer.plan.route == Route::Recurrence ? run_recurrence(layer) : run_steps(layer);
  layer.input[0].reset();
  layer.input[1].reset();
  return error;
}

// What the next layer reads of this one's output. cuDNN draws a mask for each direction of that layer, one
// after the other, over all that this one put out. False: it did not draw.
bool drop_output(const LayerCall& layer, CudnnDropout& dropout, at::Tensor (&x)[2]) {
  const RnnProblem& problem = layer.problem();
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
        layer.reserve.mutable_data_ptr<uint8_t>() + layer.places.kept_offset(layer.index + 1, direction);
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
  if (!problem.captured) {
    make_cudnn_handle(a.input.device());
  }
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
  const Reserve places(problem, plan.saves);
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
                  problem.train ? at::empty({1, places.bytes()}, options.dtype(at::kByte))
                                : at::empty({0}, options.dtype(at::kByte)),
                  places};
  // Before all that kernels work with: this is written beside the last of them.
  const at::Tensor weight_buf =
      is_given(a.weight_buf) ? *a.weight_buf : at::empty({FlatWeights(problem).elements()}, options);
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
  if (!is_given(a.weight_buf)) {
    const cudaError_t error = launch_pack_weights(parts_of_weights(a, problem, weight_buf),
                                                  weight_buf.mutable_data_ptr(), plan.overlaps, stream);
    C10_CUDA_CHECK(error);
  }
  return std::tuple{as_given(layer.y, problem, a.input.dim()), layer.hy,
                    layer.cx.defined() ? layer.cy : at::empty({0}, options), layer.reserve, weight_buf};
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
