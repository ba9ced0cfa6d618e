#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/layer.h"

#include <algorithm>
#include <utility>

#include "core/math.h"
#include "ops/rnn/backward/recurrence_backward.h"
#include "ops/rnn/lt_product.h"
#include "ops/rnn/training/column_sums.h"
#include "ops/rnn/training/copies.h"
#include "ops/rnn/training/recompute.h"
#include "ops/rnn/training/sizes.h"
#include "ops/rnn/training/step.h"

namespace aten_ext::cuda {
namespace {

// A product of each direction, as one batch where the distances between their operands allow it.
struct Operands {
  const void* rows[2];
  const void* w[2];
  void* to[2];
};

// The stride of a batch is not negative, whole vectors, and less than 2^40 bytes: what Hopper's copy engine
// takes, which products there read with.
constexpr uintptr_t kMostDistance = uintptr_t{1} << 38;
constexpr uintptr_t kVectorBytes = 16;

bool is_stride(const void* first, const void* second) {
  const auto from = reinterpret_cast<uintptr_t>(first);
  const auto to = reinterpret_cast<uintptr_t>(second);
  return from <= to && from % kVectorBytes == 0 && to % kVectorBytes == 0 && to - from <= kMostDistance;
}

int64_t elements_between(const void* first, const void* second, int64_t bytes) {
  return (static_cast<const char*>(second) - static_cast<const char*>(first)) / bytes;
}

class Run {
 public:
  Run(const RnnBackwardPlan& plan, const LayerBackward& layer, char* scratch, cudaStream_t stream)
      : plan_(plan),
        layer_(layer),
        problem_(plan.problem),
        stream_(stream),
        bytes_(plan.problem.is_16_bits() ? 2 : 4),
        steps_(plan.problem.sequence.steps),
        batch_(plan.problem.sequence.batch),
        hidden_(plan.problem.hidden),
        gates_(plan.problem.gates() * plan.problem.hidden),
        directions_(plan.problem.directions),
        is_gru_(plan.problem.cell == Cell::Gru),
        is_lstm_(plan.problem.cell == Cell::Lstm),
        at_(reinterpret_cast<uintptr_t>(scratch)) {
    carve();
  }

  // Of the scratch memory that was carved.
  int64_t end() const {
    return static_cast<int64_t>(at_);
  }

  cudaError_t operator()() {
    cudaError_t error = previous_states();
    if (error == cudaSuccess && is_lstm_ && chunks() > 1) {
      error = find_boundaries();
    }
    for (int64_t chunk = chunks() - 1; error == cudaSuccess && chunk >= 0; --chunk) {
      error = recompute(chunk, false);
      if (error == cudaSuccess) {
        error = plan_.one_launch ? one_launch(chunk) : step_by_step(chunk);
      }
    }
    if (error == cudaSuccess) {
      error = give_states();
    }
    if (error == cudaSuccess && wants_weights()) {
      error = weights();
    }
    return error == cudaSuccess && layer_.dx != nullptr ? input() : error;
  }

 private:
  bool is_16_bits() const {
    return problem_.is_16_bits();
  }
  bool wants_weights() const {
    return layer_.direction[0].dw_ih != nullptr;
  }
  bool wants_biases() const {
    return layer_.direction[0].db_ih != nullptr;
  }
  int64_t state_elements() const {
    return batch_ * hidden_;
  }
  int64_t chunks() const {
    return ceil_div(steps_, plan_.chunk);
  }
  int64_t chunk_steps(int64_t chunk) const {
    return std::min(plan_.chunk, steps_ - chunk * plan_.chunk);
  }
  // The first step in time of some steps that a direction computed from `first` on.
  int64_t time(int direction, int64_t first, int64_t steps) const {
    return direction == 0 ? first : steps_ - first - steps;
  }
  const void* of_elements(const void* from, int64_t elements) const {
    return static_cast<const char*>(from) + elements * bytes_;
  }
  void* of_elements(void* from, int64_t elements) const {
    return static_cast<char*>(from) + elements * bytes_;
  }

  // ---- memory ------------------------------------------------------------------------------------------

  char* take(int64_t bytes) {
    char* const taken = reinterpret_cast<char*>(at_);
    at_ += static_cast<uintptr_t>(round_up(bytes, int64_t{256}));
    return taken;
  }
  float* take_floats(int64_t count) {
    return reinterpret_cast<float*>(take(count * int64_t{sizeof(float)}));
  }

  void carve() {
    const int64_t rows = steps_ * batch_;
    const int64_t coefficients = coefficients_of(problem_.cell) * hidden_;
    const bool copies = steps_ > 1 && (wants_weights() || is_gru_ || is_lstm_);
    previous_ = copies ? take(directions_ * rows * hidden_ * bytes_) : nullptr;
    for (int d = 0; d < directions_; ++d) {
      coefficients_[d] = take_floats(plan_.chunk * batch_ * coefficients);
      d_hidden_gates_[d] = take(rows * gates_ * bytes_);
      d_input_gates_[d] = is_gru_ ? take(rows * gates_ * bytes_) : d_hidden_gates_[d];
    }
    const int64_t states = directions_ * state_elements();
    const bool direct = !is_16_bits();  // fp32 results are written where they go
    dh_ = direct && layer_.dhx != nullptr ? static_cast<float*>(layer_.dhx) : take_floats(states);
    if (is_lstm_) {
      dc_ = direct && layer_.dcx != nullptr ? static_cast<float*>(layer_.dcx) : take_floats(states);
      boundaries_ = chunks() > 1 ? take_floats((chunks() - 1) * states) : nullptr;
    }
    if (plan_.one_launch) {
      carve_one_launch(states);
    }
    if (wants_biases()) {
      partial_ = take_floats(partial_sums(is_gru_ ? 2 * directions_ : directions_, rows, gates_));
    }
    // Of the products of gates, and when these are over, of the input's gradient in fp32.
    const uintptr_t shared = at_;
    if (is_gru_ || is_lstm_) {
      carve_gates();
    }
    const uintptr_t end = at_;
    at_ = shared;
    if (layer_.dx != nullptr && is_16_bits() && directions_ == 2) {
      sums_rows_ =
          std::min(rows, std::max<int64_t>(1, kSumBytes / (layer_.features * int64_t{sizeof(float)})));
      sums_ = take_floats(sums_rows_ * layer_.features);
    }
    at_ = std::max(at_, end);
  }

  // Where the first chunk's gradients of gates will be is room for the products of gates: it is the last that
  // is written to, after its coefficients were made.
  void carve_gates() {
    const int64_t chunk = chunk_steps(0);
    const bool fit = plan_.part * int64_t{sizeof(float)} <= chunk * bytes_ && gates_ * bytes_ % 16 == 0;
    for (int d = 0; d < directions_; ++d) {
      const int64_t offset = time(d, 0, chunk) * batch_ * gates_;
      const auto room = [&](void* gradients) {
        return fit ? static_cast<float*>(of_elements(gradients, offset))
                   : take_floats(plan_.part * batch_ * gates_);
      };
      input_gates_[d] = room(d_input_gates_[d]);
      hidden_gates_[d] = is_gru_ ? room(d_hidden_gates_[d]) : input_gates_[d];
    }
  }

  void carve_one_launch(int64_t states) {
    for (int i = 0; i < 2; ++i) {
      passed_dh_[i] = take_floats(states);
      passed_dc_[i] = is_lstm_ ? take_floats(states) : nullptr;
    }
    words_ = reinterpret_cast<uint64_t*>(take(plan_.recurrence.words * int64_t{sizeof(uint64_t)}));
  }

  // ---- products ----------------------------------------------------------------------------------------

  cudaError_t products(LtProduct product, const Operands& o, int directions) {
    product.n_of_all = product.n;
    product.count = 1;
    product.dtype = problem_.dtype;
    if (directions == 2 && is_stride(o.rows[0], o.rows[1]) && is_stride(o.w[0], o.w[1]) &&
        o.to[0] != o.to[1] && is_stride(o.to[0], o.to[1])) {
      product.rows = o.rows[0];
      product.w = o.w[0];
      product.to = o.to[0];
      product.count = 2;
      product.rows_stride = elements_between(o.rows[0], o.rows[1], bytes_);
      product.w_stride = elements_between(o.w[0], o.w[1], bytes_);
      product.to_stride =
          elements_between(o.to[0], o.to[1], product.in_dtype ? bytes_ : int64_t{sizeof(float)});
      return run_lt_product(product, stream_) ? cudaSuccess : cudaErrorNotSupported;
    }
    for (int d = 0; d < directions; ++d) {
      product.rows = o.rows[d];
      product.w = o.w[d];
      product.to = o.to[d];
      if (!run_lt_product(product, stream_)) {
        return cudaErrorNotSupported;
      }
    }
    return cudaSuccess;
  }

  // ---- coefficients ------------------------------------------------------------------------------------

  // The states before all steps; of a single step they are hx.
  cudaError_t previous_states() {
    if (previous_ == nullptr) {
      return cudaSuccess;
    }
    return launch_previous_states(
        {layer_.y, layer_.hx, previous_, problem_.dtype, directions_, steps_, batch_, hidden_}, stream_);
  }
  const void* state_before(int direction, int64_t time) const {
    const void* const all = previous_ != nullptr ? previous_ : layer_.hx;
    return of_elements(all, (direction * steps_ + time) * state_elements());
  }

  // `steps` of them, from a direction's step `first` on, to coefficients from `to` steps on.
  cudaError_t recompute_part(int64_t chunk, int64_t first, int64_t steps) {
    RecomputeParams p{};
    p.directions = directions_;
    p.cell = problem_.cell;
    p.dtype = problem_.dtype;
    p.rows = steps * batch_;
    p.hidden = hidden_;
    p.h_row = is_gru_ ? hidden_ : directions_ * hidden_;
    Operands x{}, h{};
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& weights = layer_.direction[d];
      const int64_t begin = time(d, first, steps);
      const int64_t in_chunk = begin - time(d, chunk * plan_.chunk, chunk_steps(chunk));
      RecomputeDirection& to = p.direction[d];
      to.input_gates = input_gates_[d];
      to.hidden_gates = hidden_gates_[d];
      to.b_ih = weights.b_ih;
      to.b_hh = weights.b_hh;
      to.h = is_gru_ ? state_before(d, begin)
                     : of_elements(layer_.y, (begin * batch_ * directions_ + d) * hidden_);
      to.coefficients = coefficients_[d] + in_chunk * batch_ * coefficients_of(problem_.cell) * hidden_;
      x.rows[d] = of_elements(layer_.x, begin * batch_ * layer_.features);
      x.w[d] = weights.w_ih;
      x.to[d] = input_gates_[d];
      h.rows[d] = is_gru_ || is_lstm_ ? state_before(d, begin) : nullptr;
      h.w[d] = weights.w_hh;
      h.to[d] = hidden_gates_[d];
    }
    if (is_gru_ || is_lstm_) {
      LtProduct product{};
      product.tf32 = plan_.tf32;
      product.m = gates_;
      product.n = p.rows;
      product.k = layer_.features;
      if (const cudaError_t error = products(product, x, directions_); error != cudaSuccess) {
        return error;
      }
      product.k = hidden_;
      product.adds = is_lstm_;
      if (const cudaError_t error = products(product, h, directions_); error != cudaSuccess) {
        return error;
      }
    }
    return launch_recompute(p, stream_);
  }

  // The coefficients of a chunk; or of an LSTM only the cell state behind it.
  cudaError_t recompute(int64_t chunk, bool only_boundary) {
    const int64_t first = chunk * plan_.chunk;
    const int64_t steps = chunk_steps(chunk);
    for (int64_t done = 0; done < steps; done += plan_.part) {
      const int64_t part = std::min(plan_.part, steps - done);
      if (const cudaError_t error = recompute_part(chunk, first + done, part); error != cudaSuccess) {
        return error;
      }
    }
    if (!is_lstm_) {
      return cudaSuccess;
    }
    ScanParams p{};
    p.directions = directions_;
    p.dtype = problem_.dtype;
    p.steps = steps;
    p.batch = batch_;
    p.hidden = hidden_;
    for (int d = 0; d < directions_; ++d) {
      ScanDirection& to = p.direction[d];
      to.c0 = chunk == 0 && layer_.cx != nullptr ? of_elements(layer_.cx, d * state_elements()) : nullptr;
      to.c0_fp32 = chunk == 0 ? nullptr : boundary(chunk - 1, d);
      to.coefficients = coefficients_[d];
      to.c_end = only_boundary ? boundary(chunk, d) : nullptr;
    }
    return launch_scan(p, stream_);
  }
  // The cell state behind a chunk.
  float* boundary(int64_t chunk, int direction) const {
    return boundaries_ + (chunk * directions_ + direction) * state_elements();
  }
  cudaError_t find_boundaries() {
    cudaError_t error = cudaSuccess;
    for (int64_t chunk = 0; error == cudaSuccess && chunk < chunks() - 1; ++chunk) {
      error = recompute(chunk, true);
    }
    return error;
  }

  // ---- gradients of gates ------------------------------------------------------------------------------

  const void* dy_at(int direction, int64_t time) const {
    return layer_.dy == nullptr ? nullptr
                                : of_elements(layer_.dy, time * layer_.dy_step + direction * hidden_);
  }

  cudaError_t step_by_step(int64_t chunk) {
    const int64_t begin = chunk * plan_.chunk;
    const int64_t steps = chunk_steps(chunk);
    StepParams p{};
    p.directions = directions_;
    p.cell = problem_.cell;
    p.dtype = problem_.dtype;
    p.batch = batch_;
    p.hidden = hidden_;
    p.dy_row = layer_.dy_row;
    LtProduct product{};
    product.tf32 = plan_.tf32;
    product.m = hidden_;
    product.n = batch_;
    product.k = gates_;
    product.w_by_column = true;
    product.adds = is_gru_;
    for (int64_t step = begin + steps - 1; step >= begin; --step) {
      p.first = step == steps_ - 1;
      Operands o{};
      for (int d = 0; d < directions_; ++d) {
        const int64_t now = time(d, step, 1);
        const int64_t in_chunk = now - time(d, begin, steps);
        const int64_t states = d * state_elements();
        StepDirection& to = p.direction[d];
        to.coefficients = coefficients_[d] + in_chunk * batch_ * coefficients_of(problem_.cell) * hidden_;
        to.dy = dy_at(d, now);
        to.d_hy = layer_.d_hy == nullptr ? nullptr : of_elements(layer_.d_hy, states);
        to.d_cy = layer_.d_cy == nullptr ? nullptr : of_elements(layer_.d_cy, states);
        to.d_hidden_gates = of_elements(d_hidden_gates_[d], now * batch_ * gates_);
        to.d_input_gates = is_gru_ ? of_elements(d_input_gates_[d], now * batch_ * gates_) : nullptr;
        to.dh = dh_ + states;
        to.dc = is_lstm_ ? dc_ + states : nullptr;
        o.rows[d] = to.d_hidden_gates;
        o.w[d] = layer_.direction[d].w_hh;
        o.to[d] = to.dh;
      }
      if (const cudaError_t error = launch_step(p, stream_); error != cudaSuccess) {
        return error;
      }
      if (step == 0 && layer_.dhx == nullptr) {
        break;
      }
      // Of two directions the operands' distances change from step to step: one batch in the middle alone
      // would not pay.
      for (int d = 0; d < directions_; ++d) {
        const Operands own{{o.rows[d]}, {o.w[d]}, {o.to[d]}};
        if (const cudaError_t error = products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
    }
    return cudaSuccess;
  }

  cudaError_t one_launch(int64_t chunk) {
    const int64_t begin = chunk * plan_.chunk;
    const bool last = chunk == chunks() - 1;
    RecurrenceBackwardParams p{};
    p.directions = directions_;
    p.cell = problem_.cell;
    p.dtype = problem_.dtype;
    p.tf32 = plan_.tf32;
    p.steps = chunk_steps(chunk);
    p.batch = static_cast<int>(batch_);
    p.hidden = static_cast<int>(hidden_);
    p.dy_step = layer_.dy_step;
    p.dy_row = layer_.dy_row;
    p.plan = plan_.recurrence;
    p.words = words_;
    const float* d_hy = nullptr;
    const float* d_cy = nullptr;
    if (last) {
      if (const cudaError_t error = widen_states(chunk, d_hy, d_cy); error != cudaSuccess) {
        return error;
      }
    }
    for (int d = 0; d < directions_; ++d) {
      const int64_t now = time(d, begin, p.steps);
      const int64_t states = d * state_elements();
      const auto moved = [states](auto* from) { return from == nullptr ? nullptr : from + states; };
      BackwardDirection& to = p.direction[d];
      to.w_hh = layer_.direction[d].w_hh;
      to.coefficients = coefficients_[d];
      to.dy = dy_at(d, now);
      to.dh_in = moved(last ? d_hy : passed_dh_[(chunk + 1) % 2]);
      to.dc_in = moved(last ? d_cy : passed_dc_[(chunk + 1) % 2]);
      to.d_hidden_gates = of_elements(d_hidden_gates_[d], now * batch_ * gates_);
      to.d_input_gates = is_gru_ ? of_elements(d_input_gates_[d], now * batch_ * gates_) : nullptr;
      to.dh_out = moved(chunk == 0 ? dh_ : passed_dh_[chunk % 2]);
      to.dc_out = moved(chunk == 0 ? dc_ : passed_dc_[chunk % 2]);
    }
    if (plan_.recurrence.words > 0) {
      if (const cudaError_t error =
              cudaMemsetAsync(words_, 0, plan_.recurrence.words * sizeof(uint64_t), stream_);
          error != cudaSuccess) {
        return error;
      }
    }
    return launch_recurrence_backward(p, stream_);
  }

  // The gradients of hy and cy in fp32: as they are, or in memory that the last chunk passes nothing in.
  cudaError_t widen_states(int64_t chunk, const float*& d_hy, const float*& d_cy) {
    const int64_t count = directions_ * state_elements();
    const auto widen = [&](const void* from, float* memory, const float*& to) {
      if (from == nullptr || !is_16_bits()) {
        to = static_cast<const float*>(from);
        return cudaSuccess;
      }
      to = memory;
      return launch_widen(from, memory, count, problem_.dtype, stream_);
    };
    const cudaError_t error = widen(layer_.d_hy, passed_dh_[(chunk + 1) % 2], d_hy);
    return error == cudaSuccess ? widen(layer_.d_cy, passed_dc_[(chunk + 1) % 2], d_cy) : error;
  }

  // ---- results -----------------------------------------------------------------------------------------

  cudaError_t give_states() {
    const int64_t count = directions_ * state_elements();
    cudaError_t error = cudaSuccess;
    if (is_16_bits() && layer_.dhx != nullptr) {
      error = launch_round(dh_, layer_.dhx, count, problem_.dtype, stream_);
    }
    if (error == cudaSuccess && is_16_bits() && layer_.dcx != nullptr) {
      error = launch_round(dc_, layer_.dcx, count, problem_.dtype, stream_);
    }
    return error;
  }

  cudaError_t weights() {
    LtProduct product{};
    product.tf32 = plan_.tf32_results;
    product.n = gates_;
    product.k = steps_ * batch_;
    product.rows_by_column = true;
    product.w_by_column = true;
    product.in_dtype = true;
    Operands of_input{}, of_hidden{};
    ColumnSums sums{};
    sums.dtype = problem_.dtype;
    sums.rows = steps_ * batch_;
    sums.columns = gates_;
    sums.partial = partial_;
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& to = layer_.direction[d];
      of_input.rows[d] = d_input_gates_[d];
      of_input.w[d] = layer_.x;
      of_input.to[d] = to.dw_ih;
      of_hidden.rows[d] = d_hidden_gates_[d];
      of_hidden.w[d] = state_before(d, 0);
      of_hidden.to[d] = to.dw_hh;
      sums.from[sums.count] = d_hidden_gates_[d];
      sums.to[sums.count][0] = to.db_hh;
      sums.to[sums.count++][1] = is_gru_ ? nullptr : to.db_ih;
      if (is_gru_) {
        sums.from[sums.count] = d_input_gates_[d];
        sums.to[sums.count++][0] = to.db_ih;
      }
    }
    product.m = layer_.features;
    if (const cudaError_t error = products(product, of_input, directions_); error != cudaSuccess) {
      return error;
    }
    product.m = hidden_;
    if (const cudaError_t error = products(product, of_hidden, directions_); error != cudaSuccess) {
      return error;
    }
    return wants_biases() ? launch_column_sums(sums, stream_) : cudaSuccess;
  }

  cudaError_t input() {
    LtProduct product{};
    product.tf32 = plan_.tf32_results;
    product.m = layer_.features;
    product.k = gates_;
    product.w_by_column = true;
    const int64_t rows = steps_ * batch_;
    const int64_t at_once = sums_ != nullptr ? sums_rows_ : rows;
    product.in_dtype = sums_ == nullptr;
    for (int64_t first = 0; first < rows; first += at_once) {
      product.n = std::min(at_once, rows - first);
      void* const result = of_elements(layer_.dx, first * layer_.features);
      void* const to = sums_ != nullptr ? sums_ : result;
      for (int d = 0; d < directions_; ++d) {
        product.adds = d > 0;
        const Operands own{
            {of_elements(d_input_gates_[d], first * gates_)}, {layer_.direction[d].w_ih}, {to}};
        if (const cudaError_t error = products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
      if (sums_ != nullptr) {
        if (const cudaError_t error =
                launch_round(sums_, result, product.n * layer_.features, problem_.dtype, stream_);
            error != cudaSuccess) {
          return error;
        }
      }
    }
    return cudaSuccess;
  }

  // fp32 sums of both directions that a gradient of the input has before it is rounded.
  static constexpr int64_t kSumBytes = int64_t{32} << 20;

  const RnnBackwardPlan& plan_;
  const LayerBackward& layer_;
  const RnnProblem& problem_;
  cudaStream_t stream_;
  int64_t bytes_, steps_, batch_, hidden_, gates_;
  int directions_;
  bool is_gru_, is_lstm_;
  uintptr_t at_;

  void* previous_ = nullptr;  // [directions, steps, batch, H]
  float* coefficients_[2] = {};
  void* d_hidden_gates_[2] = {};
  void* d_input_gates_[2] = {};
  float* dh_ = nullptr;  // [directions, batch, H]
  float* dc_ = nullptr;
  float* boundaries_ = nullptr;  // LSTM: cell states behind all chunks but the last
  float* passed_dh_[2] = {};     // from chunk to chunk
  float* passed_dc_[2] = {};
  uint64_t* words_ = nullptr;
  float* partial_ = nullptr;
  float* input_gates_[2] = {};
  float* hidden_gates_[2] = {};
  float* sums_ = nullptr;
  int64_t sums_rows_ = 0;
};

}  // namespace

int64_t scratch_bytes(const RnnBackwardPlan& plan, const LayerBackward& layer) {
  return Run(plan, layer, nullptr, nullptr).end();
}

cudaError_t run_layer_backward(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream) {
  return Run(plan, layer, layer.scratch, stream)();
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
