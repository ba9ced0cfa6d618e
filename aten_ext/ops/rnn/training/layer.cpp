#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/layer.h"

#include <algorithm>

#include "ops/rnn/backward/recurrence_backward.h"
#include "ops/rnn/training/both_directions.h"
#include "ops/rnn/training/column_sums.h"
#include "ops/rnn/training/copies.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/few_rows.h"
#include "ops/rnn/training/packed.h"
#include "ops/rnn/training/recompute.h"
#include "ops/rnn/training/scratch.h"
#include "ops/rnn/training/sizes.h"
#include "ops/rnn/training/step.h"

namespace aten_ext::cuda {
namespace {

class Run {
 public:
  Run(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream)
      : plan_(plan),
        layer_(layer),
        cell_(plan.problem.cell),
        dtype_(plan.problem.dtype),
        sizes_(plan),
        memory_(plan, layer, layer.scratch),
        directions_(plan.problem.directions),
        stream_(stream) {}

  cudaError_t operator()() {
    cudaError_t error = previous_states();
    if (error == cudaSuccess && sizes_.is_lstm && sizes_.chunks() > 1) {
      error = find_boundaries();
    }
    for (int64_t chunk = sizes_.chunks() - 1; error == cudaSuccess && chunk >= 0; --chunk) {
      error = recompute(chunk, false);
      if (error == cudaSuccess) {
        error = plan_.one_launch ? one_launch(chunk) : step_by_step(chunk);
      }
    }
    dx_ = layer_.dx_behind_dy();
    if (error == cudaSuccess && layer_.packed != nullptr) {
      error = pack_results();
    }
    if (error == cudaSuccess) {
      error = give_states();
    }
    if (error == cudaSuccess && layer_.direction[0].dw_ih != nullptr) {
      error = plan_.few_rows ? weights_of_few_rows() : weights();
    }
    return error != cudaSuccess ? error : plan_.few_rows ? inputs_of_few_rows() : input();
  }

 private:
  bool is_16_bits() const {
    return plan_.problem.is_16_bits();
  }
  // The gradient of hx of a single step is made with the input's.
  bool is_step_of_few_rows() const {
    return plan_.few_rows && sizes_.steps == 1;
  }
  int64_t coefficients() const {
    return coefficients_of(cell_) * sizes_.hidden;
  }
  LtProduct new_product(bool tf32) const {
    LtProduct product{};
    product.dtype = dtype_;
    product.tf32 = tf32;
    return product;
  }
  cudaError_t products(const LtProduct& product, const Operands& operands, int directions,
                       bool apart = false) {
    return run_products(product, operands, directions, apart, stream_) ? cudaSuccess : cudaErrorNotSupported;
  }

  // ---- coefficients ------------------------------------------------------------------------------------

  // The states before all steps; of a single step they are hx.
  cudaError_t previous_states() {
    if (memory_.previous == nullptr) {
      return cudaSuccess;
    }
    return launch_previous_states({layer_.y, layer_.hx, memory_.previous, dtype_, directions_, sizes_.steps,
                                   sizes_.batch, sizes_.hidden},
                                  stream_);
  }
  const void* state_before(int direction, int64_t time) const {
    const void* const all = memory_.previous != nullptr ? memory_.previous : layer_.hx;
    return sizes_.at(all, (direction * sizes_.steps + time) * sizes_.state());
  }

  // Of `steps` steps from a direction's step `first` on, in a chunk.
  cudaError_t recompute_part(int64_t chunk, int64_t first, int64_t steps) {
    RecomputeParams p{};
    p.directions = directions_;
    p.cell = cell_;
    p.dtype = dtype_;
    p.rows = steps * sizes_.batch;
    p.hidden = sizes_.hidden;
    p.h_row = sizes_.is_gru ? sizes_.hidden : directions_ * sizes_.hidden;
    Operands x{}, h{};
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& weights = layer_.direction[d];
      const int64_t begin = sizes_.time(d, first, steps);
      const int64_t in_chunk = begin - sizes_.time(d, chunk * sizes_.chunk, sizes_.chunk_steps(chunk));
      RecomputeDirection& to = p.direction[d];
      to.input_gates = memory_.input_gates[d];
      to.hidden_gates = memory_.hidden_gates[d];
      to.b_ih = weights.b_ih;
      to.b_hh = weights.b_hh;
      to.h = sizes_.is_gru ? state_before(d, begin)
                           : sizes_.at(layer_.y, (begin * sizes_.batch * directions_ + d) * sizes_.hidden);
      to.coefficients = memory_.coefficients[d] + in_chunk * sizes_.batch * coefficients();
      const void* const all_x = layer_.packed != nullptr ? layer_.padded_x[d] : layer_.x[d];
      x.rows[d] = sizes_.at(all_x, begin * sizes_.batch * layer_.features);
      x.w[d] = weights.w_ih;
      x.to[d] = memory_.input_gates[d];
      h.rows[d] = sizes_.is_gru || sizes_.is_lstm ? state_before(d, begin) : nullptr;
      h.w[d] = weights.w_hh;
      h.to[d] = memory_.hidden_gates[d];
    }
    if (sizes_.is_gru || sizes_.is_lstm) {
      const cudaError_t error =
          plan_.few_rows ? gates_of_few_rows(x, h, p.rows) : gate_products(x, h, p.rows);
      if (error != cudaSuccess) {
        return error;
      }
    }
    return launch_recompute(p, stream_);
  }

  cudaError_t gate_products(const Operands& x, const Operands& h, int64_t rows) {
    LtProduct product = new_product(plan_.tf32);
    product.m = sizes_.gates;
    product.n = rows;
    product.k = layer_.features;
    if (const cudaError_t error = products(product, x, directions_); error != cudaSuccess) {
      return error;
    }
    product.k = sizes_.hidden;
    product.adds = sizes_.is_lstm;
    return products(product, h, directions_);
  }

  cudaError_t gates_of_few_rows(const Operands& x, const Operands& h, int64_t rows) {
    GateProducts p{};
    p.dtype = dtype_;
    p.n = static_cast<int>(rows);
    p.m = sizes_.gates;
    for (int d = 0; d < directions_; ++d) {
      GateProduct& first = p.item[p.count++];
      first.rows[0] = x.rows[d];
      first.w[0] = x.w[d];
      first.k[0] = layer_.features;
      first.to = memory_.input_gates[d];
      const int second = sizes_.is_lstm ? 1 : 0;
      GateProduct& with_h = sizes_.is_lstm ? first : p.item[p.count++];
      with_h.rows[second] = h.rows[d];
      with_h.w[second] = h.w[d];
      with_h.k[second] = sizes_.hidden;
      with_h.to = memory_.hidden_gates[d];
    }
    return launch_gate_products(p, stream_);
  }

  // The coefficients of a chunk; or of an LSTM only the cell state behind it.
  cudaError_t recompute(int64_t chunk, bool only_boundary) {
    if (plan_.saved) {
      return cudaSuccess;
    }
    const int64_t first = chunk * sizes_.chunk;
    const int64_t steps = sizes_.chunk_steps(chunk);
    for (int64_t done = 0; done < steps; done += plan_.part) {
      const int64_t part = std::min(plan_.part, steps - done);
      if (const cudaError_t error = recompute_part(chunk, first + done, part); error != cudaSuccess) {
        return error;
      }
    }
    if (sizes_.is_lstm) {
      if (const cudaError_t error = scan(chunk, only_boundary); error != cudaSuccess) {
        return error;
      }
    }
    return layer_.packed != nullptr && !only_boundary ? pass_where_no_row_is(chunk) : cudaSuccess;
  }

  cudaError_t scan(int64_t chunk, bool only_boundary) {
    ScanParams p{};
    p.directions = directions_;
    p.dtype = dtype_;
    p.steps = sizes_.chunk_steps(chunk);
    p.batch = sizes_.batch;
    p.hidden = sizes_.hidden;
    for (int d = 0; d < directions_; ++d) {
      ScanDirection& to = p.direction[d];
      to.c0 = chunk == 0 && layer_.cx != nullptr ? sizes_.at(layer_.cx, d * sizes_.state()) : nullptr;
      to.c0_fp32 = chunk == 0 ? nullptr : boundary(chunk - 1, d);
      to.coefficients = memory_.coefficients[d];
      to.c_end = only_boundary ? boundary(chunk, d) : nullptr;
    }
    return launch_scan(p, stream_);
  }
  // Of a packed sequence.
  cudaError_t pass_where_no_row_is(int64_t chunk) {
    const int64_t first = chunk * sizes_.chunk;
    const int64_t steps = sizes_.chunk_steps(chunk);
    PassRows pass{{}, {}, static_cast<int>(steps), sizes_.hidden, directions_};
    for (int d = 0; d < directions_; ++d) {
      pass.coefficients[d] = memory_.coefficients[d];
      pass.first[d] = static_cast<int>(sizes_.time(d, first, steps));
    }
    return launch_pass_coefficients(*layer_.packed, pass, Dtype::Float, cell_, stream_);
  }
  // The cell state behind a chunk.
  float* boundary(int64_t chunk, int direction) const {
    return memory_.boundaries + (chunk * directions_ + direction) * sizes_.state();
  }
  cudaError_t find_boundaries() {
    cudaError_t error = cudaSuccess;
    for (int64_t chunk = 0; error == cudaSuccess && chunk < sizes_.chunks() - 1; ++chunk) {
      error = recompute(chunk, true);
    }
    return error;
  }

  // ---- gradients of gates ------------------------------------------------------------------------------

  const void* dy_at(int direction, int64_t time) const {
    return layer_.dy == nullptr ? nullptr
                                : sizes_.at(layer_.dy, time * layer_.dy_step + direction * sizes_.hidden);
  }
  static const void* moved(const LayerSizes& sizes, const void* from, int64_t elements) {
    return from == nullptr ? nullptr : sizes.at(from, elements);
  }

  cudaError_t step_by_step(int64_t chunk) {
    const int64_t begin = chunk * sizes_.chunk;
    const int64_t steps = sizes_.chunk_steps(chunk);
    StepParams p{};
    p.directions = directions_;
    p.cell = cell_;
    p.dtype = dtype_;
    p.batch = sizes_.batch;
    p.hidden = sizes_.hidden;
    p.dy_row = layer_.dy_row;
    LtProduct product = new_product(plan_.tf32);
    product.m = sizes_.hidden;
    product.n = sizes_.batch;
    product.k = sizes_.gates;
    product.w_by_column = true;
    product.adds = sizes_.is_gru;
    for (int64_t step = begin + steps - 1; step >= begin; --step) {
      p.first = step == sizes_.steps - 1;
      for (int d = 0; d < directions_; ++d) {
        const int64_t now = sizes_.time(d, step, 1);
        const int64_t in_chunk = now - sizes_.time(d, begin, steps);
        const int64_t gates = now * sizes_.batch * sizes_.gates;
        const int64_t states = d * sizes_.state();
        StepDirection& to = p.direction[d];
        to.coefficients = memory_.coefficients[d] + in_chunk * sizes_.batch * coefficients();
        to.dy = dy_at(d, now);
        to.d_hy = moved(sizes_, layer_.d_hy, states);
        to.d_cy = moved(sizes_, layer_.d_cy, states);
        to.d_hidden_gates = sizes_.at(memory_.d_hidden_gates[d], gates);
        to.d_input_gates = sizes_.is_gru ? sizes_.at(memory_.d_input_gates[d], gates) : nullptr;
        to.dh = memory_.dh + states;
        to.dc = sizes_.is_lstm ? memory_.dc + states : nullptr;
      }
      if (const cudaError_t error = launch_step(p, stream_); error != cudaSuccess) {
        return error;
      }
      if (step == 0 && (layer_.dhx == nullptr || is_step_of_few_rows())) {
        break;
      }
      // The distances between two directions' operands change from step to step: no batch.
      for (int d = 0; d < directions_; ++d) {
        const StepDirection& of = p.direction[d];
        const Operands own{{of.d_hidden_gates}, {layer_.direction[d].w_hh}, {of.dh}};
        if (const cudaError_t error = products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
    }
    return cudaSuccess;
  }

  cudaError_t one_launch(int64_t chunk) {
    const int64_t begin = chunk * sizes_.chunk;
    const bool last = chunk == sizes_.chunks() - 1;
    RecurrenceBackwardParams p{};
    p.directions = directions_;
    p.cell = cell_;
    p.dtype = dtype_;
    p.tf32 = plan_.tf32;
    p.saved = plan_.saved;
    p.steps = sizes_.chunk_steps(chunk);
    p.batch = static_cast<int>(sizes_.batch);
    p.hidden = static_cast<int>(sizes_.hidden);
    p.dy_step = layer_.dy_step;
    p.dy_row = layer_.dy_row;
    p.plan = plan_.recurrence;
    p.words = memory_.words;
    const float* dh_in = memory_.passed_dh[(chunk + 1) % 2];
    const float* dc_in = memory_.passed_dc[(chunk + 1) % 2];
    if (last) {
      if (const cudaError_t error = widen_states(chunk, dh_in, dc_in); error != cudaSuccess) {
        return error;
      }
    }
    float* const dh_out = chunk == 0 ? memory_.dh : memory_.passed_dh[chunk % 2];
    float* const dc_out = chunk == 0 ? memory_.dc : memory_.passed_dc[chunk % 2];
    for (int d = 0; d < directions_; ++d) {
      const int64_t now = sizes_.time(d, begin, p.steps);
      const int64_t gates = now * sizes_.batch * sizes_.gates;
      const auto of = [&](auto* states) { return states == nullptr ? nullptr : states + d * sizes_.state(); };
      BackwardDirection& to = p.direction[d];
      to.w_hh = layer_.direction[d].w_hh;
      to.coefficients = plan_.saved ? layer_.coefficients[d] : memory_.coefficients[d];
      to.dy = dy_at(d, now);
      to.dh_in = of(dh_in);
      to.dc_in = of(dc_in);
      to.d_hidden_gates = sizes_.at(memory_.d_hidden_gates[d], gates);
      to.d_input_gates = sizes_.is_gru ? sizes_.at(memory_.d_input_gates[d], gates) : nullptr;
      to.dh_out = of(dh_out);
      to.dc_out = of(dc_out);
    }
    if (plan_.recurrence.words > 0) {
      if (const cudaError_t error =
              cudaMemsetAsync(memory_.words, 0, plan_.recurrence.words * sizeof(uint64_t), stream_);
          error != cudaSuccess) {
        return error;
      }
    }
    return launch_recurrence_backward(p, stream_);
  }

  // The gradients of hy and cy in fp32: as they are, or in memory that the last chunk passes nothing in.
  cudaError_t widen_states(int64_t chunk, const float*& dh, const float*& dc) {
    const int64_t count = directions_ * sizes_.state();
    const auto widen = [&](const void* from, float* memory, const float*& to) {
      if (from == nullptr || !is_16_bits()) {
        to = static_cast<const float*>(from);
        return cudaSuccess;
      }
      to = memory;
      return launch_widen(from, memory, count, dtype_, stream_);
    };
    const cudaError_t error = widen(layer_.d_hy, memory_.passed_dh[(chunk + 1) % 2], dh);
    return error == cudaSuccess ? widen(layer_.d_cy, memory_.passed_dc[(chunk + 1) % 2], dc) : error;
  }

  // ---- results -----------------------------------------------------------------------------------------

  cudaError_t give_states() {
    const int64_t count = directions_ * sizes_.state();
    cudaError_t error = cudaSuccess;
    if (is_16_bits() && layer_.dhx != nullptr && !is_step_of_few_rows()) {
      error = launch_round(memory_.dh, layer_.dhx, count, dtype_, stream_);
    }
    if (error == cudaSuccess && is_16_bits() && layer_.dcx != nullptr) {
      error = launch_round(memory_.dc, layer_.dcx, count, dtype_, stream_);
    }
    return error;
  }

  // What the results of a packed sequence are made of, in its rows.
  cudaError_t pack_results() {
    PackRows rows[kMostPacked];
    int count = 0;
    const auto pack = [&](const void* padded, void* to, int64_t width, int direction) {
      if (to != nullptr) {
        rows[count++] = {padded, to, width, direction};
      }
    };
    for (int d = 0; d < directions_; ++d) {
      pack(memory_.d_hidden_gates[d], memory_.packed_d_hidden[d], sizes_.gates, d);
      if (sizes_.is_gru) {
        pack(memory_.d_input_gates[d], memory_.packed_d_input[d], sizes_.gates, d);
      }
      pack(state_before(d, 0), memory_.packed_previous[d], sizes_.hidden, d);
    }
    return count > 0 ? launch_pack_rows(*layer_.packed, rows, count, dtype_, stream_) : cudaSuccess;
  }
  const void* d_input_rows(int direction) const {
    return layer_.packed != nullptr ? memory_.packed_d_input[direction] : memory_.d_input_gates[direction];
  }
  const void* d_hidden_rows(int direction) const {
    return layer_.packed != nullptr ? memory_.packed_d_hidden[direction] : memory_.d_hidden_gates[direction];
  }
  const void* previous_rows(int direction) const {
    return layer_.packed != nullptr ? memory_.packed_previous[direction] : state_before(direction, 0);
  }

  cudaError_t weights() {
    LtProduct product = new_product(false);
    product.n = sizes_.gates;
    product.k = layer_.rows;
    product.rows_by_column = true;
    product.w_by_column = true;
    product.in_dtype = true;
    Operands of_input{}, of_hidden{};
    ColumnSums sums{};
    sums.dtype = dtype_;
    sums.rows = layer_.rows;
    sums.columns = sizes_.gates;
    sums.partial = memory_.partial;
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& to = layer_.direction[d];
      of_input.rows[d] = d_input_rows(d);
      of_input.w[d] = layer_.x[d];
      of_input.to[d] = to.dw_ih;
      of_hidden.rows[d] = d_hidden_rows(d);
      of_hidden.w[d] = previous_rows(d);
      of_hidden.to[d] = to.dw_hh;
      sums.from[sums.count] = d_hidden_rows(d);
      sums.to[sums.count][0] = to.db_hh;
      sums.to[sums.count++][1] = sizes_.is_gru ? nullptr : to.db_ih;
      if (sizes_.is_gru) {
        sums.from[sums.count] = d_input_rows(d);
        sums.to[sums.count++][0] = to.db_ih;
      }
    }
    product.m = layer_.features;
    product.tf32 = has_tf32_weights(plan_, product.m);
    if (const cudaError_t error = layer_.drops_x
                                      ? weights_of_dropped_input(product, of_input)
                                      : products(product, of_input, directions_, plan_.weights_apart);
        error != cudaSuccess) {
      return error;
    }
    product.m = sizes_.hidden;
    product.tf32 = has_tf32_weights(plan_, product.m);
    if (const cudaError_t error = memory_.previous != nullptr || sizes_.steps == 1
                                      ? products(product, of_hidden, directions_, plan_.weights_apart)
                                      : weights_of_output(product);
        error != cudaSuccess) {
      return error;
    }
    return layer_.direction[0].db_ih != nullptr ? launch_column_sums(sums, stream_) : cudaSuccess;
  }

  // x as a direction read it.
  cudaError_t drop_x(int direction, void* to) {
    const Drop drop{layer_.x[direction], to, layer_.rows * layer_.features, layer_.kept_scale, dtype_};
    return launch_drop(drop, layer_.kept[direction], stream_);
  }

  // One direction after the other, where dx will be.
  cudaError_t weights_of_dropped_input(const LtProduct& product, const Operands& of_input) {
    cudaError_t error = cudaSuccess;
    for (int d = 0; error == cudaSuccess && d < directions_; ++d) {
      error = drop_x(d, dx_);
      if (error == cudaSuccess) {
        error = products(product, {{of_input.rows[d]}, {dx_}, {of_input.to[d]}}, 1);
      }
    }
    return error;
  }

  // Of W_hh, of one direction: the first step's part, and that of all others, whose states are the output. In
  // this order 16 bits are rounded to once but for what one step has.
  cudaError_t weights_of_output(LtProduct product) {
    const void* const gradients = d_hidden_rows(0);
    void* const to = layer_.direction[0].dw_hh;
    product.k = sizes_.batch;
    if (const cudaError_t error = products(product, {{gradients}, {layer_.hx}, {to}}, 1);
        error != cudaSuccess) {
      return error;
    }
    product.k = layer_.rows - sizes_.batch;
    product.adds = true;
    return products(product, {{sizes_.at(gradients, sizes_.batch * sizes_.gates)}, {layer_.y}, {to}}, 1);
  }

  cudaError_t weights_of_few_rows() {
    WeightGradients p{};
    p.dtype = dtype_;
    p.n = static_cast<int>(sizes_.rows());
    p.gates = sizes_.gates;
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& to = layer_.direction[d];
      const void* x = layer_.x[d];
      if (layer_.drops_x) {
        void* const dropped = d == 0 ? dx_ : memory_.dropped;
        if (const cudaError_t error = drop_x(d, dropped); error != cudaSuccess) {
          return error;
        }
        x = dropped;
      }
      p.item[p.count++] = {memory_.d_input_gates[d], x, to.dw_ih, to.db_ih, layer_.features};
      p.item[p.count++] = {memory_.d_hidden_gates[d], state_before(d, 0), to.dw_hh, to.db_hh, sizes_.hidden};
    }
    return launch_weight_gradients(p, stream_);
  }

  cudaError_t input() {
    if (dx_ == nullptr) {
      return cudaSuccess;
    }
    // Of one column cuDNN's product is with a vector, and in fp32.
    LtProduct product = new_product(plan_.tf32_results && layer_.features > 1);
    product.m = layer_.features;
    product.k = sizes_.gates;
    product.w_by_column = true;
    product.in_dtype = memory_.sums[0] == nullptr;
    const bool both = directions_ == 2;
    const bool drops = layer_.kept[0] != nullptr;
    const int64_t rows = layer_.rows;
    const int64_t at_once = memory_.sums_rows > 0 ? memory_.sums_rows : rows;
    for (int64_t first = 0; first < rows; first += at_once) {
      product.n = std::min(at_once, rows - first);
      const int64_t begin = first * layer_.features;
      const int64_t count = product.n * layer_.features;
      void* const result = sizes_.at(dx_, begin);
      void* const to = memory_.sums[0] != nullptr ? memory_.sums[0] : result;
      void* const second = drops ? memory_.sums[1] : to;
      for (int d = 0; d < directions_; ++d) {
        product.adds = d > 0 && second == to;
        const Operands own{{sizes_.at(d_input_rows(d), first * sizes_.gates)},
                           {layer_.direction[d].w_ih},
                           {d == 0 ? to : second}};
        if (const cudaError_t error = products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
      const cudaError_t error = drops && both ? sum_dropped(begin, count, static_cast<float*>(to), result)
                                : drops       ? drop_dx()
                                : memory_.sums[0] != nullptr
                                    ? launch_round(memory_.sums[0], result, count, dtype_, stream_)
                                    : cudaSuccess;
      if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  }

  // Of one direction all at once, and in place: cuDNN rounds a gradient before dropout, too.
  cudaError_t drop_dx() {
    const Drop drop{dx_, dx_, layer_.rows * layer_.features, layer_.kept_scale, dtype_};
    return launch_drop(drop, layer_.kept[0], stream_);
  }
  // Of two directions, `count` elements from `begin` on, a multiple of those of a byte of bits.
  cudaError_t sum_dropped(int64_t begin, int64_t count, const float* first, void* to) {
    const int64_t byte = begin / kKeptOfByte;
    const DropSum sum{{first, memory_.sums[1]},
                      {layer_.kept[0] + byte, layer_.kept[1] + byte},
                      to,
                      count,
                      layer_.kept_scale,
                      dtype_};
    return launch_drop_sum(sum, stream_);
  }

  cudaError_t inputs_of_few_rows() {
    InputGradients p{};
    p.dtype = dtype_;
    p.n = static_cast<int>(sizes_.rows());
    p.gates = sizes_.gates;
    if (dx_ != nullptr) {
      InputGradient& item = p.item[p.count++];
      for (int d = 0; d < directions_; ++d) {
        item.d[d] = memory_.d_input_gates[d];
        item.w[d] = layer_.direction[d].w_ih;
        item.kept[d] = layer_.kept[d];
      }
      p.kept_scale = layer_.kept_scale;
      item.to = dx_;
      item.columns = layer_.features;
    }
    if (layer_.dhx != nullptr && is_step_of_few_rows()) {
      for (int d = 0; d < directions_; ++d) {
        InputGradient& item = p.item[p.count++];
        item.d[0] = memory_.d_hidden_gates[d];
        item.w[0] = layer_.direction[d].w_hh;
        item.added = sizes_.is_gru ? memory_.dh + d * sizes_.state() : nullptr;
        item.to = sizes_.at(layer_.dhx, d * sizes_.state());
        item.columns = sizes_.hidden;
      }
    }
    return p.count > 0 ? launch_input_gradients(p, stream_) : cudaSuccess;
  }

  const RnnBackwardPlan& plan_;
  const LayerBackward& layer_;
  void* dx_ = nullptr;
  Cell cell_;
  Dtype dtype_;
  LayerSizes sizes_;
  Scratch memory_;
  int directions_;
  cudaStream_t stream_;
};

}  // namespace

int64_t scratch_bytes(const RnnBackwardPlan& plan, const LayerBackward& layer) {
  return Scratch(plan, layer, nullptr).bytes;
}

cudaError_t run_layer_backward(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream) {
  return Run(plan, layer, stream)();
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
