// _cudnn_rnn on CUDA: when a GRU layer's inference runs on our kernels, and over what.
//
// What PyTorch passes (aten/src/ATen/native/cudnn/RNN.cpp): `weight` has, for each layer and then each
// direction, weight_stride0 tensors, w_ih [3H, I], w_hh [3H, H] and, if 4, b_ih and b_hh [3H]; hx is [layers
// * directions, batch, H] and contiguous. It returns the output as [steps, batch, directions * H] (transposed
// afterwards with batch_first), hy like hx, and in inference an empty cy and an empty `reserve` of bytes.
// weight_buf is what the caller gave, or a packed copy of the weights made for this call; only a backward
// pass reads it, and after inference there is none (upstream raises there), so we return what was given or
// nothing, and pack nothing.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <tuple>

#include "cuda/gru_plan.h"
#include "gru_args.h"
#include "overrides.h"

#define ATEN_EXT_CUDNN_RNN_PARAMETERS                                                                       \
  [[maybe_unused]] const at::Tensor &input, [[maybe_unused]] at::TensorList weight,                         \
      [[maybe_unused]] int64_t weight_stride0, [[maybe_unused]] const std::optional<at::Tensor>&weight_buf, \
      [[maybe_unused]] const at::Tensor &hx, [[maybe_unused]] const std::optional<at::Tensor>&cx,           \
      [[maybe_unused]] int64_t mode, [[maybe_unused]] int64_t hidden_size,                                  \
      [[maybe_unused]] int64_t proj_size, [[maybe_unused]] int64_t num_layers,                              \
      [[maybe_unused]] bool batch_first, [[maybe_unused]] double dropout, [[maybe_unused]] bool train,      \
      [[maybe_unused]] bool bidirectional, [[maybe_unused]] at::IntArrayRef batch_sizes,                    \
      [[maybe_unused]] const std::optional<at::Tensor>&dropout_state

namespace aten_ext {
namespace {

// The sizes of a call whose tensors are known to fit.
GruSizes gru_sizes(const at::Tensor& input, int64_t hidden, int64_t layers, bool batch_first,
                   bool bidirectional) {
  GruSizes sizes{};
  sizes.sixteen_bits = input.scalar_type() != at::kFloat;
  sizes.bfloat16 = input.scalar_type() == at::kBFloat16;
  // The first layer's features; `input` may be those of another one. See plan_gru().
  sizes.tf32_allowed = at::globalContext().allowTF32CuDNN(at::Float32Op::RNN) && input.size(2) % 4 == 0;
  sizes.steps = input.size(batch_first ? 1 : 0);
  sizes.batch = input.size(batch_first ? 0 : 1);
  sizes.hidden = hidden;
  sizes.directions = bidirectional ? 2 : 1;
  sizes.input = layers > 1 ? std::max(input.size(2), hidden * sizes.directions) : input.size(2);
  return sizes;
}

// Shapes of the weight list: what upstream would accept, no more. With weight_buf, of which they are views,
// that is also one column of all elements: what PyTorch's autocast makes of its 16-bit copies.
const char* decline_weights(const at::Tensor& input, at::TensorList weight, int64_t stride, bool flattened,
                            int64_t hidden, int64_t layers, int64_t directions) {
  if ((stride != 2 && stride != 4) || layers < 1 ||
      static_cast<int64_t>(weight.size()) != layers * directions * stride) {
    return "weight list that does not fit the layers";
  }
  for (size_t i = 0; i < weight.size(); ++i) {
    const at::Tensor& w = weight[i];
    if (const char* reason = decline_beside(w, input)) {
      return reason;
    }
    const auto kind = static_cast<int64_t>(i) % stride;
    const bool first_layer = static_cast<int64_t>(i) < directions * stride;
    const int64_t columns = first_layer ? input.size(2) : directions * hidden;
    const int64_t count = 3 * hidden * (kind == 0 ? columns : kind == 1 ? hidden : 1);
    if (!(flattened && has_shape(w, {count, 1})) && !(kind == 0   ? has_shape(w, {3 * hidden, columns})
                                                      : kind == 1 ? has_shape(w, {3 * hidden, hidden})
                                                                  : has_shape(w, {3 * hidden}))) {
      return "weight list that does not fit the layers";
    }
    if (!w.is_contiguous()) {
      return "weights that are not contiguous";
    }
  }
  return nullptr;
}

#ifdef ATEN_EXT_WITH_CUDA
GruPlan plan_on_device(const GruSizes& sizes, const at::Tensor& input);
#endif

GruPlan plan_call(const GruSizes& sizes, const at::Tensor& input) {
#ifdef ATEN_EXT_WITH_CUDA
  if (!input.is_meta()) {
    return plan_on_device(sizes, input);
  }
#endif
  (void)input;
  return plan_gru(sizes, kReferenceGruDevice);
}

}  // namespace

const char* decline::_cudnn_rnn_cuda(ATEN_EXT_CUDNN_RNN_PARAMETERS) {
  if (mode != kCudnnGru) {
    return "mode other than GRU";
  }
  if (train) {
    return "training";
  }
  if (!batch_sizes.empty()) {
    return "packed sequence";
  }
  if (proj_size != 0) {
    return "projection";
  }
  if (is_given(cx)) {
    return "cell state";
  }
  if (!input.defined() || !hx.defined()) {
    return "undefined tensor";
  }
  if (!is_gru_dtype(input)) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (const char* reason = decline_beside(input, input)) {
    return reason;
  }
  if (const char* reason = decline_beside(hx, input)) {
    return reason;
  }
  if (input.dim() != 3) {
    return "input that is not three-dimensional";
  }
  if (input.numel() == 0 || hidden_size < 1) {
    return "empty input";
  }
  const int64_t directions = bidirectional ? 2 : 1;
  if (const char* reason = decline_weights(input, weight, weight_stride0, is_given(weight_buf), hidden_size,
                                           num_layers, directions)) {
    return reason;
  }
  const GruSizes sizes = gru_sizes(input, hidden_size, num_layers, batch_first, bidirectional);
  if (!has_shape(hx, {num_layers * directions, sizes.batch, hidden_size}) || !hx.is_contiguous()) {
    return "initial state that is not contiguous or of another size";
  }
  return plan_call(sizes, input).reason;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <map>
#include <mutex>
#include <optional>

#include "cuda/cudnn_rnn.h"
#include "cuda/gru_cell.h"
#include "cuda/gru_projection.h"
#include "gpu_support.h"

namespace aten_ext {
namespace {

using cuda::RecurrenceExchange;
using cuda::RecurrenceMath;
using cuda::RecurrenceParams;

static_assert(static_cast<int>(GruMath::Mma) == static_cast<int>(RecurrenceMath::Mma) &&
              static_cast<int>(GruMath::MmaTf32) == static_cast<int>(RecurrenceMath::MmaTf32) &&
              static_cast<int>(GruExchange::Cluster) == static_cast<int>(RecurrenceExchange::Cluster) &&
              static_cast<int>(GruExchange::Grid) == static_cast<int>(RecurrenceExchange::Grid));

void set_plan(RecurrenceParams& p, const GruSizes& sizes, const GruPlan& plan, at::ScalarType dtype) {
  p.directions = sizes.directions;
  p.dtype = dtype == at::kHalf       ? cuda::RecurrenceDtype::Half
            : dtype == at::kBFloat16 ? cuda::RecurrenceDtype::BFloat16
                                     : cuda::RecurrenceDtype::Float;
  p.steps = sizes.steps;
  p.batch = static_cast<int>(sizes.batch);
  p.hidden = static_cast<int>(sizes.hidden);
  p.math = static_cast<RecurrenceMath>(plan.math);
  p.exchange = static_cast<RecurrenceExchange>(plan.exchange);
  p.blocks = plan.blocks;
  p.rows = plan.rows;
}

// What has been learned of the devices of this process: the driver is asked once for each device, and once
// for each kind of launch on it. Threads share it.
class Devices {
 public:
  GruPlan plan(const GruSizes& sizes, const at::Tensor& input) {
    const int index = std::max<int>(0, input.device().index());
    const std::lock_guard<std::mutex> lock(mutex_);
    std::optional<c10::cuda::CUDAGuard> guard;  // switched only for a question that is new
    auto device = devices_.find(index);
    if (device == devices_.end()) {
      guard.emplace(input.device());
      cuda::RecurrenceDevice facts{};
      C10_CUDA_CHECK(cuda::query_recurrence_device(code_version(input.device()) / 10, facts));
      GruDevice known{facts.multiprocessors, facts.compute_major, {}};
      std::copy(std::begin(facts.clusters), std::end(facts.clusters), known.clusters);
      device = devices_.emplace(index, known).first;
    }
    GruPlan plan = plan_gru(sizes, device->second);
    if (plan.route != GruRoute::Recurrence) {
      return plan;
    }
    RecurrenceParams p{};
    set_plan(p, sizes, plan, input.scalar_type());
    const Launch launch{index,  p.dtype, p.math,   p.exchange,  p.blocks,
                        p.rows, p.batch, p.hidden, p.directions};
    auto known = launches_.find(launch);
    if (known == launches_.end()) {
      if (!guard.has_value()) {
        guard.emplace(input.device());
      }
      bool fits = false;
      C10_CUDA_CHECK(cuda::query_recurrence_launch(p, fits));
      if (launches_.size() >= kMostLaunches) {
        launches_.clear();
      }
      known = launches_.emplace(launch, fits).first;
    }
    if (!known->second) {
      plan = {};
      plan.reason = "GPU that refuses the launch";
    }
    return plan;
  }

 private:
  // device, dtype, math, exchange, blocks, rows, batch, hidden, directions
  using Launch =
      std::tuple<int, cuda::RecurrenceDtype, RecurrenceMath, RecurrenceExchange, int, int, int, int, int>;
  static constexpr size_t kMostLaunches = 4096;  // a program with more kinds of calls asks again
  std::mutex mutex_;
  std::map<int, GruDevice> devices_;
  std::map<Launch, bool> launches_;
};

GruPlan plan_on_device(const GruSizes& sizes, const at::Tensor& input) {
  static Devices devices;
  return devices.plan(sizes, input);
}

// A sequence as a matrix of rows for one GEMM, and where the row of a step and a batch row is.
struct Rows {
  at::Tensor matrix;  // [steps * batch, features]
  int64_t step, row;  // in rows
};

Rows as_rows(const at::Tensor& sequence /* [steps, batch, features] */) {
  const int64_t steps = sequence.size(0);
  const int64_t batch = sequence.size(1);
  const int64_t features = sequence.size(2);
  if (const at::Tensor batch_major = sequence.transpose(0, 1);
      !sequence.is_contiguous() && batch_major.is_contiguous()) {
    return {batch_major.view({batch * steps, features}), 1, steps};
  }
  return {sequence.contiguous().view({steps * batch, features}), batch, 1};
}

// Weights that came as one column of all elements, as decline_weights() lets them.
at::Tensor as_matrix(const at::Tensor& w, int64_t rows) {
  return w.size(0) == rows ? w : w.view({rows, -1});
}

// The weights of one layer and direction.
struct Weights {
  at::Tensor w_ih, w_hh;
  const void* b_ih;
  const void* b_hh;

  Weights(at::TensorList weight, int64_t index, int64_t stride, int64_t hidden)
      : w_ih(as_matrix(weight[index * stride], 3 * hidden)),
        w_hh(as_matrix(weight[index * stride + 1], 3 * hidden)),
        b_ih(stride == 4 ? weight[index * stride + 2].const_data_ptr() : nullptr),
        b_hh(stride == 4 ? weight[index * stride + 3].const_data_ptr() : nullptr) {}
};

struct Layer {
  GruSizes sizes;
  GruPlan plan;
  at::TensorList weight;
  int64_t stride;
  int64_t index;
};

// [steps, batch, directions * hidden] at the columns of a direction.
void* columns_of(const at::Tensor& y, int64_t direction, int64_t hidden) {
  return static_cast<char*>(y.mutable_data_ptr()) + direction * hidden * y.element_size();
}

// All steps: the projections of all directions, then one launch.
void run_recurrence(const Layer& layer, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& hy,
                    const at::Tensor& y, cudaStream_t stream) {
  const GruSizes& sizes = layer.sizes;
  const Rows rows = as_rows(input);
  RecurrenceParams p{};
  set_plan(p, sizes, layer.plan, input.scalar_type());
  at::Tensor w_ih[2];
  at::Tensor gates[2];
  for (int64_t direction = 0; direction < sizes.directions; ++direction) {
    const int64_t index = layer.index * sizes.directions + direction;
    w_ih[direction] = Weights(layer.weight, index, layer.stride, sizes.hidden).w_ih;
  }
  cuda::project_input(rows.matrix, w_ih, sizes.directions, layer.plan.tf32, gates);
  for (int64_t direction = 0; direction < sizes.directions; ++direction) {
    const int64_t index = layer.index * sizes.directions + direction;
    const Weights weights(layer.weight, index, layer.stride, sizes.hidden);
    p.direction[direction] = {weights.w_hh.const_data_ptr(),
                              weights.b_ih,
                              weights.b_hh,
                              gates[direction].const_data_ptr<float>(),
                              hx.select(0, index).const_data_ptr(),
                              hy.select(0, index).mutable_data_ptr(),
                              columns_of(y, direction, sizes.hidden)};
  }
  p.gate_step = rows.step * 3 * sizes.hidden;
  p.gate_row = rows.row * 3 * sizes.hidden;
  p.y_step = y.stride(0);
  p.y_row = y.stride(1);
  at::Tensor words;
  if (p.exchange == RecurrenceExchange::Grid) {
    // Of this launch alone: two streams, two threads or two replays of different graphs share none of it.
    words = at::zeros({cuda::exchange_words(p)}, input.options().dtype(at::kLong));
    p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  }
  C10_CUDA_CHECK(cuda::launch_recurrence(p, stream));
}

// A few steps: one launch for each, with its projection. Between them the state is what was written to y, in
// 16 bits for 16-bit tensors: run on the CPU (tests/device_on_host, 30 seeds), three steps of H = 128 have a
// mean error 14 % above that of a state kept in fp32.
void run_steps(const Layer& layer, const at::Tensor& input, const at::Tensor& hx, const at::Tensor& hy,
               const at::Tensor& y, cudaStream_t stream) {
  const GruSizes& sizes = layer.sizes;
  const at::Tensor x = input.stride(2) == 1 ? input : input.contiguous();
  cuda::GruCellParams p{};
  p.directions = sizes.directions;
  p.dtype = x.scalar_type() == at::kHalf       ? cuda::GruCellDtype::Half
            : x.scalar_type() == at::kBFloat16 ? cuda::GruCellDtype::BFloat16
                                               : cuda::GruCellDtype::Float;
  p.tf32 = layer.plan.tf32;
  p.batch = static_cast<int>(sizes.batch);
  p.input = static_cast<int>(x.size(2));
  p.hidden = static_cast<int>(sizes.hidden);
  p.x_row = x.stride(1);
  p.h_row = sizes.hidden;
  p.y_row = y.stride(1);
  for (int64_t direction = 0; direction < sizes.directions; ++direction) {
    const int64_t index = layer.index * sizes.directions + direction;
    const Weights weights(layer.weight, index, layer.stride, sizes.hidden);
    p.direction[direction] = {weights.w_ih.const_data_ptr(),
                              weights.w_hh.const_data_ptr(),
                              weights.b_ih,
                              weights.b_hh,
                              nullptr,
                              hx.select(0, index).const_data_ptr(),
                              hy.select(0, index).mutable_data_ptr(),
                              nullptr};
  }
  for (int64_t step = 0; step < sizes.steps; ++step) {
    for (int64_t direction = 0; direction < sizes.directions; ++direction) {
      const int64_t time = direction == 0 ? step : sizes.steps - 1 - step;
      cuda::GruCellDirection& d = p.direction[direction];
      if (step > 0) {  // the state is what the step before wrote
        d.h = d.y;
      }
      d.x = static_cast<const char*>(x.const_data_ptr()) + time * x.stride(0) * x.element_size();
      d.y =
          static_cast<char*>(columns_of(y, direction, sizes.hidden)) + time * y.stride(0) * y.element_size();
    }
    C10_CUDA_CHECK(cuda::launch_gru_cell(p, stream));
    p.h_row = p.y_row;
  }
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> run::_cudnn_rnn_cuda(
    ATEN_EXT_CUDNN_RNN_PARAMETERS) {
  const c10::cuda::CUDAGuard guard(input.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const GruSizes sizes = gru_sizes(input, hidden_size, num_layers, batch_first, bidirectional);
  const GruPlan plan = plan_call(sizes, input);

  at::Tensor sequence = batch_first ? input.transpose(0, 1) : input;
  const at::Tensor hy = at::empty({num_layers * sizes.directions, sizes.batch, hidden_size}, hx.options());
  for (int64_t index = 0; index < num_layers; ++index) {
    const at::Tensor y =
        at::empty({sizes.steps, sizes.batch, sizes.directions * hidden_size}, input.options());
    const Layer layer{sizes, plan, weight, weight_stride0, index};
    switch (plan.route) {
      case GruRoute::Recurrence:
        run_recurrence(layer, sequence, hx, hy, y, stream);
        break;
      case GruRoute::Step:
        run_steps(layer, sequence, hx, hy, y, stream);
        break;
      case GruRoute::Upstream:
        TORCH_INTERNAL_ASSERT(false, "decline() lets no such call through");
    }
    sequence = y;
  }
  const at::Tensor nothing = at::empty({0}, hx.options());
  return {batch_first ? sequence.transpose(0, 1) : sequence, hy, nothing,
          at::empty({0}, input.options().dtype(at::kByte)),
          is_given(weight_buf) ? *weight_buf : at::empty({0}, input.options())};
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
