// _cudnn_rnn on CUDA: a stack of GRU layers in inference.
//
// It returns the output as [steps, batch, directions * H] (transposed afterwards with batch_first), hy like
// hx, and in inference an empty cy and an empty `reserve` of bytes. weight_buf is what the caller gave, or a
// packed copy of the weights made for this call; only a backward pass reads it, and after inference there is
// none (upstream raises there), so what was given is returned, or nothing, and nothing is packed.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "core/gpu.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"

namespace aten_ext {

Choice<cuda::RnnPlan> cuda::choose(const args::_cudnn_rnn& a) {
  RnnProblem problem{};
  const char* const reason = problem_of(a, problem);
  return reason != nullptr ? Choice<RnnPlan>(reason) : plan_rnn(problem, gpu_of(a.input.device()));
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/rnn/gru_cell.h"
#include "ops/rnn/projection.h"
#include "ops/rnn/recurrence.h"

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

  Weights(at::TensorList weight, const RnnProblem& problem, int64_t index) {
    const int64_t first = index * problem.weights();
    w_ih = as_matrix(weight[first], 3 * problem.hidden);
    w_hh = as_matrix(weight[first + 1], 3 * problem.hidden);
    b_ih = problem.biases ? weight[first + 2].const_data_ptr() : nullptr;
    b_hh = problem.biases ? weight[first + 3].const_data_ptr() : nullptr;
  }
};

// A layer at work. The first reads the call's input, the others what the layer before wrote.
struct LayerCall {
  const RnnPlan& plan;
  at::TensorList weight;
  int64_t index;
  Layout layout;     // of the input
  at::Tensor input;  // [steps, batch, features]
  at::Tensor hx, hy;
  at::Tensor y;  // [steps, batch, directions * hidden]
  cudaStream_t stream;

  const RnnProblem& problem() const {
    return plan.problem;
  }
  // In the list of weights and in the states.
  int64_t index_of(int64_t direction) const {
    return index * problem().directions + direction;
  }
  Weights weights(int64_t direction) const {
    return {weight, problem(), index_of(direction)};
  }
  // The columns of y that are a direction's.
  char* columns_of_y(int64_t direction) const {
    return static_cast<char*>(y.mutable_data_ptr()) + direction * problem().hidden * y.element_size();
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

// All steps: the projections of all directions, then one launch.
cudaError_t run_recurrence(const LayerCall& layer) {
  const RnnProblem& problem = layer.problem();
  const Rows rows = as_rows(layer.input, layer.layout);
  RecurrenceParams p{};
  p.directions = problem.directions;
  p.dtype = problem.dtype;
  p.steps = problem.sequence.steps;
  p.batch = static_cast<int>(problem.sequence.batch);
  p.hidden = static_cast<int>(problem.hidden);
  p.plan = layer.plan.recurrence;
  at::Tensor w_ih[2];
  at::Tensor projections[2];
  for (int64_t direction = 0; direction < p.directions; ++direction) {
    w_ih[direction] = layer.weights(direction).w_ih;
  }
  project_input(rows.matrix, w_ih, p.directions, layer.plan.tf32, projections);
  for (int64_t direction = 0; direction < p.directions; ++direction) {
    const Weights weights = layer.weights(direction);
    const int64_t index = layer.index_of(direction);
    p.direction[direction] = {weights.w_hh.const_data_ptr(),
                              weights.b_ih,
                              weights.b_hh,
                              projections[direction].const_data_ptr<float>(),
                              layer.hx.select(0, index).const_data_ptr(),
                              layer.hy.select(0, index).mutable_data_ptr(),
                              layer.columns_of_y(direction)};
  }
  p.projection_step = rows.step * 3 * problem.hidden;
  p.projection_row = rows.row * 3 * problem.hidden;
  p.y_step = layer.y.stride(0);
  p.y_row = layer.y.stride(1);
  at::Tensor words;
  if (p.plan.words > 0) {
    // Of this launch alone: two streams, two threads or two replays of different graphs share none of it.
    words = at::zeros({p.plan.words}, layer.y.options().dtype(at::kLong));
    p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  }
  return launch_recurrence(p, layer.stream);
}

// A few steps: one launch for each, with its projection. Between them the state is what was written to y, in
// 16 bits for 16-bit tensors (docs/numerics.md).
cudaError_t run_steps(const LayerCall& layer) {
  const RnnProblem& problem = layer.problem();
  const at::Tensor x = layer.layout == Layout::Strided ? layer.input.contiguous() : layer.input;
  GruCellParams p{};
  p.directions = problem.directions;
  p.dtype = problem.dtype;
  p.batch = static_cast<int>(problem.sequence.batch);
  p.input = static_cast<int>(x.size(2));
  p.hidden = static_cast<int>(problem.hidden);
  p.x_row = x.stride(1);
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
  }
  const int64_t steps = problem.sequence.steps;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t direction = 0; direction < p.directions; ++direction) {
      const int64_t time = direction == 0 ? step : steps - 1 - step;
      GruCellDirection& d = p.direction[direction];
      if (step > 0) {  // the state is what the step before wrote
        d.h = d.y;
      }
      d.x = static_cast<const char*>(x.const_data_ptr()) + time * x.stride(0) * x.element_size();
      d.y = layer.columns_of_y(direction) + time * layer.y.stride(0) * layer.y.element_size();
    }
    if (const cudaError_t error = launch_gru_cell(p, layer.plan.step[layer.index > 0], layer.stream);
        error != cudaSuccess) {
      return error;
    }
    p.h_row = p.y_row;
  }
  return cudaSuccess;
}

}  // namespace

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>> run(const args::_cudnn_rnn& a,
                                                                                const RnnPlan& plan) {
  const RnnProblem& problem = plan.problem;
  const Sequence& sequence = problem.sequence;
  const c10::cuda::CUDAGuard guard(a.input.device());
  const at::TensorOptions options = a.input.options();
  LayerCall layer{plan,
                  a.weight,
                  0,
                  sequence.layout,
                  problem.batch_first ? a.input.transpose(0, 1) : a.input,
                  a.hx,
                  at::empty({problem.layers * problem.directions, sequence.batch, problem.hidden}, options),
                  {},
                  c10::cuda::getCurrentCUDAStream()};
  for (; layer.index < problem.layers; ++layer.index) {
    layer.y = at::empty({sequence.steps, sequence.batch, problem.directions * problem.hidden}, options);
    const cudaError_t error = plan.route == Route::Recurrence ? run_recurrence(layer) : run_steps(layer);
    if (is_refusal(error)) {
      return kRefused;  // results are fresh: nobody has seen what earlier launches wrote
    }
    C10_CUDA_CHECK(error);
    layer.input = layer.y;
    layer.layout = Layout::TimeMajor;
  }
  return std::tuple{problem.batch_first ? layer.y.transpose(0, 1) : layer.y, layer.hy,
                    at::empty({0}, options), at::empty({0}, options.dtype(at::kByte)),
                    is_given(a.weight_buf) ? *a.weight_buf : at::empty({0}, options)};
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
