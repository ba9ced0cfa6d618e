// _cudnn_rnn_backward on CUDA, of forwards that ran here.
//
// As upstream's: gradients of all weights are views of one buffer in the order of weight_buf, or a tensor
// each where the layers have no biases; with batch_first the input's is the transpose of a contiguous tensor.
// Other than upstream's, what the mask does not ask for is not computed but undefined, and `reserve` is only
// read.
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <optional>

#include "core/gpu.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/training/reserve.h"

namespace aten_ext {
namespace {

const char* decline_like(const std::optional<at::Tensor>& t, const at::Tensor& like, at::IntArrayRef sizes) {
  if (!cuda::is_given(t)) {
    return nullptr;
  }
  if (const char* reason = cuda::decline_beside(*t, like)) {
    return reason;
  }
  return t->sizes() == sizes ? nullptr : "gradient of another size";
}

// Whether the forward saved them: the size of its reserve says so.
bool has_coefficients(const args::_cudnn_rnn_backward& a, const cuda::RnnProblem& problem) {
  return cuda::recomputed_of(problem.cell) > 0 &&
         cuda::has_shape(a.reserve, {1, cuda::Reserve(problem, true).bytes()});
}

const char* decline_backward(const args::_cudnn_rnn_backward& a, const cuda::RnnProblem& problem) {
  if ((!cuda::has_shape(a.reserve, {1, cuda::Reserve(problem, false).bytes()}) &&
       !has_coefficients(a, problem)) ||
      !a.reserve.is_contiguous() || a.reserve.storage_offset() % int64_t{sizeof(float)} != 0 ||
      a.reserve.device() != a.input.device()) {
    return "reserve of another size";
  }
  if (const char* reason = cuda::decline_beside(a.output, a.input)) {
    return reason;
  }
  const cuda::Sequence& sequence = problem.sequence;
  const int64_t columns = problem.directions * problem.hidden;
  if (a.input.dim() == 2    ? !cuda::has_shape(a.output, {sequence.rows(), columns})
      : problem.batch_first ? !cuda::has_shape(a.output, {sequence.batch, sequence.steps, columns})
                            : !cuda::has_shape(a.output, {sequence.steps, sequence.batch, columns})) {
    return "output of another size";
  }
  if (const char* reason = decline_like(a.grad_output, a.input, a.output.sizes())) {
    return reason;
  }
  if (const char* reason = decline_like(a.grad_hy, a.input, a.hx.sizes())) {
    return reason;
  }
  return cuda::has_cell_state(problem.cell) ? decline_like(a.grad_cy, a.input, a.hx.sizes()) : nullptr;
}

}  // namespace

bool cuda::saved_by_ours(const args::_cudnn_rnn_backward& a) {
  return a.reserve.defined() && a.reserve.scalar_type() == at::kByte && a.reserve.dim() == Reserve::kDims;
}

Choice<cuda::RnnBackwardPlan> cuda::choose(const args::_cudnn_rnn_backward& a) {
  const std::optional<at::Tensor> none;
  const args::_cudnn_rnn forward{
      a.input, a.weight,        a.weight_stride0, none,           a.hx,          a.cx,
      a.mode,  a.hidden_size,   a.proj_size,      a.num_layers,   a.batch_first, a.dropout,
      a.train, a.bidirectional, a.batch_sizes,    a.dropout_state};
  RnnProblem problem{};
  if (const char* reason = problem_of(forward, problem, true)) {
    return reason;
  }
  if (const char* reason = decline_backward(a, problem)) {
    return reason;
  }
  const auto& mask = a.output_mask;
  return plan_rnn_backward(problem, {mask[0], mask[1], mask[2] && is_given(a.cx), mask[3]},
                           gpu_of(a.input.device()), has_coefficients(a, problem));
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>
#include <vector>

#include "core/launch.h"
#include "core/math.h"
#include "ops/rnn/cudnn_handle.h"
#include "ops/rnn/flat_weights.h"
#include "ops/rnn/in_time.h"
#include "ops/rnn/packed_metadata.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/layer.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

using Arguments = args::_cudnn_rnn_backward;

// A part of a buffer, without the cost of an operator for each.
at::Tensor part_of(const at::Tensor& buffer, int64_t offset, at::IntArrayRef sizes) {
  auto part = c10::make_intrusive<at::TensorImpl>(at::TensorImpl::VIEW, at::Storage(buffer.storage()),
                                                  buffer.key_set(), buffer.dtype());
  part->set_storage_offset(offset);
  part->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(part));
}

// The gradients of the weights, before anything is in them.
std::vector<at::Tensor> new_weight_gradients(const Arguments& a, const RnnProblem& problem) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(a.weight.size());
  if (!problem.biases) {
    for (const at::Tensor& w : a.weight) {
      gradients.push_back(at::empty(w.sizes(), w.options()));
    }
    return gradients;
  }
  const FlatWeights flat(problem);
  const at::Tensor buffer = at::empty({flat.elements()}, a.input.options());
  const auto kinds = static_cast<int64_t>(problem.weights());
  for (int64_t i = 0; i < static_cast<int64_t>(a.weight.size()); ++i) {
    gradients.push_back(part_of(buffer, flat.offset(i / kinds, i % kinds), a.weight[i].sizes()));
  }
  return gradients;
}

// What autograd saved, and what came to it, as a layer reads it.
struct Call {
  const Arguments& a;
  const RnnBackwardPlan& plan;
  at::Tensor input;   // [steps, batch, features], or [rows, features] packed, contiguous
  at::Tensor output;  // the last layer's, contiguous
  at::Tensor dy;      // as the output, of rows that lie in one piece; or undefined
  at::Tensor d_hy, d_cy;
  at::Tensor dx, dhx, dcx;
  std::vector<at::Tensor> weight_gradients;
  const PackedRows* packed;  // or nullptr

  const RnnProblem& problem() const {
    return plan.problem;
  }
};

const void* read(const at::Tensor& t) {
  return t.defined() ? t.const_data_ptr() : nullptr;
}
void* written(const at::Tensor& t) {
  return t.defined() ? t.mutable_data_ptr() : nullptr;
}
const void* moved(const void* from, int64_t bytes) {
  return from == nullptr ? nullptr : static_cast<const char*>(from) + bytes;
}
void* moved(void* from, int64_t bytes) {
  return from == nullptr ? nullptr : static_cast<char*>(from) + bytes;
}

at::Tensor contiguous(const std::optional<at::Tensor>& t) {
  return is_given(t) ? t->contiguous() : at::Tensor();
}

// Rows that lie in one piece each; those of a packed sequence one behind the other.
at::Tensor rows_of(const std::optional<at::Tensor>& t, const RnnProblem& problem) {
  if (!is_given(t)) {
    return {};
  }
  if (problem.sequence.is_packed()) {
    return t->contiguous();
  }
  at::Tensor rows = in_time(*t, problem);
  return rows.stride(2) == 1 || rows.size(2) == 1 ? rows : rows.contiguous();
}

void fill_weights(const Call& call, int64_t layer, LayerBackward& to) {
  const RnnProblem& problem = call.problem();
  const int64_t kinds = problem.weights();
  for (int d = 0; d < problem.directions; ++d) {
    const int64_t index = layer * problem.directions + d;
    const auto weight = [&](int64_t kind) { return call.a.weight[index * kinds + kind].const_data_ptr(); };
    const auto gradient = [&](int64_t kind) {
      return call.plan.wanted.weights ? call.weight_gradients[index * kinds + kind].mutable_data_ptr()
                                      : nullptr;
    };
    // Of a layer without biases the forward added what weight_buf has in their place: zeros, as a rule.
    const auto bias = [&](int64_t kind) -> const void* {
      const at::Tensor& buffer = call.a.weight_buf;
      const FlatWeights flat(problem);
      return problem.biases ? weight(kind)
             : buffer.defined() && buffer.is_contiguous() && buffer.numel() == flat.elements()
                 ? moved(buffer.const_data_ptr(), flat.offset(index, kind) * buffer.element_size())
                 : nullptr;
    };
    LayerBackwardDirection& direction = to.direction[d];
    direction.w_ih = weight(0);
    direction.w_hh = weight(1);
    direction.b_ih = bias(2);
    direction.b_hh = bias(3);
    direction.dw_ih = gradient(0);
    direction.dw_hh = gradient(1);
    direction.db_ih = problem.biases ? gradient(2) : nullptr;
    direction.db_hh = problem.biases ? gradient(3) : nullptr;
  }
}

// What dropout kept of a layer's input. Where gates are computed again, each direction's input is there
// before: `dropped`, [directions, rows, features].
cudaError_t drop_layer(const Call& call, const Reserve& reserve, int64_t layer, LayerBackward& to,
                       at::Tensor& dropped, cudaStream_t stream) {
  const RnnProblem& problem = call.problem();
  to.kept_scale = scale_of_kept(problem.dropout);
  for (int d = 0; d < problem.directions; ++d) {
    to.kept[d] = call.a.reserve.const_data_ptr<uint8_t>() + reserve.kept_offset(layer, d);
  }
  to.drops_x = recomputed_of(problem.cell) == 0 || call.plan.saved;
  if (to.drops_x) {
    return cudaSuccess;
  }
  const int64_t count = to.rows * to.features;
  const int64_t apart = round_up(count, int64_t{128});  // each at a multiple of 256 bytes
  dropped = at::empty({problem.directions, apart}, call.input.options());
  cudaError_t error = cudaSuccess;
  for (int d = 0; error == cudaSuccess && d < problem.directions; ++d) {
    void* const result = moved(dropped.mutable_data_ptr(), d * apart * dropped.element_size());
    error = launch_drop({to.x[d], result, count, to.kept_scale, problem.dtype}, to.kept[d], stream);
    to.x[d] = result;
  }
  return error;
}

// From the last layer to the first: the gradient of a layer's input is that of the output of the one before.
cudaError_t run_layers(Call& call, cudaStream_t stream) {
  const RnnProblem& problem = call.problem();
  const Sequence& sequence = problem.sequence;
  const Reserve reserve(problem, call.plan.saved);
  const std::vector<Piece> pieces = pieces_of_backward(call.plan);
  const at::TensorOptions options = call.input.options();
  const int64_t columns = problem.directions * problem.hidden;
  const int64_t state_bytes = sequence.batch * columns * call.input.element_size();
  for (int64_t layer = problem.layers - 1; layer >= 0; --layer) {
    const bool first = layer == 0;
    const auto inner = [&](int64_t of) { return moved(call.a.reserve.const_data_ptr(), reserve.offset(of)); };
    c10::SmallVector<int64_t, 3> sizes(call.input.sizes());
    sizes.back() = columns;
    at::Tensor dx;
    LayerBackward to{};
    to.packed = call.packed;
    to.pieces = &pieces;
    to.rows = sequence.rows();
    fill_weights(call, layer, to);
    to.features = first ? sequence.features : columns;
    to.x[0] = to.x[1] = first ? call.input.const_data_ptr() : inner(layer - 1);
    to.y = layer == problem.layers - 1 ? call.output.const_data_ptr() : inner(layer);
    to.hx = moved(call.a.hx.const_data_ptr(), layer * state_bytes);
    to.cx = is_given(call.a.cx) ? moved(call.a.cx->const_data_ptr(), layer * state_bytes) : nullptr;
    to.dy = read(call.dy);
    const bool strided = call.dy.defined() && call.packed == nullptr;
    to.dy_step = strided ? call.dy.stride(0) : 0;
    to.dy_row = strided ? call.dy.stride(1) : 0;
    to.d_hy = moved(read(call.d_hy), layer * state_bytes);
    to.d_cy = moved(read(call.d_cy), layer * state_bytes);
    to.wants_dx = !first || call.plan.wanted.input;
    to.dhx = moved(written(call.dhx), layer * state_bytes);
    to.dcx = moved(written(call.dcx), layer * state_bytes);
    for (int d = 0; call.plan.saved && d < problem.directions; ++d) {
      to.coefficients[d] = moved(call.a.reserve.const_data_ptr(), reserve.coefficients_offset(layer, d));
    }
    at::Tensor dropped;
    if (problem.drops() && !first) {
      if (const cudaError_t error = drop_layer(call, reserve, layer, to, dropped, stream);
          error != cudaSuccess) {
        return error;
      }
    }
    const at::Tensor scratch(
        at::detail::empty_cuda({scratch_bytes(call.plan, to)}, at::kByte, options.device(), std::nullopt));
    to.scratch = static_cast<char*>(scratch.mutable_data_ptr());
    to.dx_behind_dy = [&] {
      call.dy.reset();
      dx = to.wants_dx ? at::empty(first ? call.input.sizes() : at::IntArrayRef(sizes), options)
                       : at::Tensor();
      return written(dx);
    };
    if (const cudaError_t error = run_layer_backward(call.plan, to, stream); error != cudaSuccess) {
      return error;
    }
    (first ? call.dx : call.dy) = dx;
  }
  return cudaSuccess;
}

}  // namespace

Ran<std::tuple<at::Tensor, at::Tensor, at::Tensor, std::vector<at::Tensor>>> run(
    const args::_cudnn_rnn_backward& a, const RnnBackwardPlan& plan) {
  const RnnProblem& problem = plan.problem;
  if (!is_given(a.grad_output) && !is_given(a.grad_hy) && !is_given(a.grad_cy)) {
    return std::tuple{at::Tensor(), at::Tensor(), at::Tensor(), std::vector<at::Tensor>(a.weight.size())};
  }
  const c10::cuda::CUDAGuard guard(a.input.device());
  if (!problem.captured) {
    make_cudnn_handle(a.input.device());
  }
  const at::TensorOptions options = a.input.options();
  const Sequence& sequence = problem.sequence;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  std::optional<PackedMetadata> metadata;
  if (sequence.is_packed()) {
    metadata.emplace(sequence, options, stream);
    if (is_refusal(metadata->error)) {
      return kRefused;
    }
    C10_CUDA_CHECK(metadata->error);
  }
  const at::Tensor input = in_time(a.input, problem).contiguous();
  Call call{a,
            plan,
            input,
            in_time(a.output, problem).contiguous(),
            rows_of(a.grad_output, problem),
            contiguous(a.grad_hy),
            has_cell_state(problem.cell) ? contiguous(a.grad_cy) : at::Tensor(),
            {},
            plan.wanted.hx ? at::empty(a.hx.sizes(), options) : at::Tensor(),
            plan.wanted.cx ? at::empty(a.hx.sizes(), options) : at::Tensor(),
            plan.wanted.weights ? new_weight_gradients(a, problem) : std::vector<at::Tensor>(),
            metadata.has_value() ? &metadata->rows : nullptr};
  const cudaError_t error = run_layers(call, stream);
  if (is_refusal(error)) {
    return kRefused;  // results are fresh: nobody has seen what earlier launches wrote
  }
  C10_CUDA_CHECK(error);
  return std::tuple{call.dx.defined() ? as_given(call.dx, problem, a.input.dim()) : call.dx,
                    std::move(call.dhx), std::move(call.dcx), std::move(call.weight_gradients)};
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
