#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/layer.h"

#include <algorithm>

#include "ops/rnn/training/column_sums.h"
#include "ops/rnn/training/copies.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/few_rows.h"
#include "ops/rnn/training/layer_run.h"

namespace aten_ext::cuda {
namespace {

// What the gradients of gates make: those of states, weights, biases and input.
class Results : LayerPart {
 public:
  using LayerPart::LayerPart;

  cudaError_t operator()() {
    dx_ = layer_.dx_behind_dy();
    cudaError_t error = give_states();
    if (error == cudaSuccess && layer_.direction[0].dw_ih != nullptr) {
      error = plan_.few_rows ? weights_of_few_rows() : weights();
    }
    return error != cudaSuccess ? error : plan_.few_rows ? inputs_of_few_rows() : input();
  }

 private:
  cudaError_t give_states() {
    const int64_t count = directions_ * sizes_.state();
    cudaError_t error = cudaSuccess;
    if (run_.is_16_bits() && layer_.dhx != nullptr && !run_.is_step_of_few_rows()) {
      error = launch_round(memory_.dh, layer_.dhx, count, run_.dtype, stream_);
    }
    if (error == cudaSuccess && run_.is_16_bits() && layer_.dcx != nullptr) {
      error = launch_round(memory_.dc, layer_.dcx, count, run_.dtype, stream_);
    }
    return error;
  }

  const void* d_input_rows(int direction) const {
    return sizes_.is_packed ? memory_.packed_d_input[direction] : memory_.d_input_gates[direction];
  }
  const void* previous_rows(int direction) const {
    return sizes_.is_packed ? memory_.packed_previous[direction] : states_before(direction);
  }

  // Of all steps of a padded sequence.
  const void* states_before(int direction) const {
    return run_.states_before(sizes_.pieces[0], direction, 0, sizes_.steps);
  }

  cudaError_t weights() {
    LtProduct product = run_.new_product(false);
    product.n = sizes_.gates;
    product.k = layer_.rows;
    product.rows_by_column = true;
    product.w_by_column = true;
    product.in_dtype = true;
    Operands of_input{};
    for (int d = 0; d < directions_; ++d) {
      of_input.rows[d] = d_input_rows(d);
      of_input.w[d] = layer_.x[d];
      of_input.to[d] = layer_.direction[d].dw_ih;
    }
    product.m = layer_.features;
    product.tf32 = has_tf32_weights(plan_, product.m);
    if (const cudaError_t error = layer_.drops_x
                                      ? weights_of_dropped_input(product, of_input)
                                      : run_.products(product, of_input, directions_, plan_.weights_apart);
        error != cudaSuccess) {
      return error;
    }
    product.m = sizes_.hidden;
    product.tf32 = has_tf32_weights(plan_, product.m);
    if (const cudaError_t error = hidden_weights(product); error != cudaSuccess) {
      return error;
    }
    return layer_.direction[0].db_ih != nullptr ? sum_columns() : cudaSuccess;
  }

  // Of W_hh.
  cudaError_t hidden_weights(LtProduct product) {
    if (!sizes_.is_packed && memory_.previous[0] == nullptr && sizes_.steps > 1) {
      return weights_of_output(product);
    }
    if (!has_n_alone()) {
      return hidden_weights(product, 0, [&](int d) {
        return sizes_.is_packed ? memory_.packed_d_input[d] : memory_.d_hidden_gates[d];
      });
    }
    product.n = others_than_n();
    product.rows_length = sizes_.gates;
    const cudaError_t error = hidden_weights(product, 0, [&](int d) { return memory_.packed_d_input[d]; });
    if (error != cudaSuccess) {
      return error;
    }
    product.n = sizes_.hidden;
    product.rows_length = 0;
    return hidden_weights(product, others_than_n(), [&](int d) { return memory_.packed_d_hidden[d]; });
  }
  // Those of gates from `first` on.
  template <typename Rows>
  cudaError_t hidden_weights(const LtProduct& product, int64_t first, const Rows& rows_of) {
    Operands operands{};
    for (int d = 0; d < directions_; ++d) {
      operands.rows[d] = rows_of(d);
      operands.w[d] = previous_rows(d);
      operands.to[d] = sizes_.at(layer_.direction[d].dw_hh, first * sizes_.hidden);
    }
    return run_.products(product, operands, directions_, plan_.weights_apart);
  }

  // Of a packed GRU the gradients of W_hh h are n's alone: the others are those of W_ih x.
  bool has_n_alone() const {
    return sizes_.is_packed && sizes_.is_gru;
  }
  int64_t others_than_n() const {
    return sizes_.gates - sizes_.hidden;
  }

  // The gradients of biases.
  cudaError_t sum_columns() {
    ColumnSums sums{};
    sums.dtype = run_.dtype;
    sums.rows = layer_.rows;
    sums.columns = sizes_.gates;
    sums.partial = memory_.partial;
    const int64_t gates = sizes_.gates;
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& to = layer_.direction[d];
      const void* const input = d_input_rows(d);
      if (has_n_alone()) {
        sums.matrix[sums.count++] = {input, gates, to.db_ih, to.db_hh, others_than_n()};
        sums.matrix[sums.count++] = {memory_.packed_d_hidden[d], sizes_.hidden,
                                     sizes_.at(to.db_hh, others_than_n()), nullptr, 0};
      } else if (sizes_.is_gru) {
        sums.matrix[sums.count++] = {memory_.d_hidden_gates[d], gates, to.db_hh, nullptr, 0};
        sums.matrix[sums.count++] = {input, gates, to.db_ih, nullptr, 0};
      } else {
        sums.matrix[sums.count++] = {input, gates, to.db_hh, to.db_ih, gates};
      }
    }
    return launch_column_sums(sums, stream_);
  }

  // x as a direction read it.
  cudaError_t drop_x(int direction, void* to) {
    const Drop drop{layer_.x[direction], to, layer_.rows * layer_.features, layer_.kept_scale, run_.dtype};
    return launch_drop(drop, layer_.kept[direction], stream_);
  }

  // One direction after the other, where dx will be.
  cudaError_t weights_of_dropped_input(const LtProduct& product, const Operands& of_input) {
    cudaError_t error = cudaSuccess;
    for (int d = 0; error == cudaSuccess && d < directions_; ++d) {
      error = drop_x(d, dx_);
      if (error == cudaSuccess) {
        error = run_.products(product, {{of_input.rows[d]}, {dx_}, {of_input.to[d]}}, 1);
      }
    }
    return error;
  }

  // Of W_hh, of one direction: the first step's part, and that of all others, whose states are the output. In
  // this order 16 bits are rounded to once but for what one step has.
  cudaError_t weights_of_output(LtProduct product) {
    const void* const gradients = memory_.d_hidden_gates[0];
    void* const to = layer_.direction[0].dw_hh;
    product.k = sizes_.batch;
    if (const cudaError_t error = run_.products(product, {{gradients}, {layer_.hx}, {to}}, 1);
        error != cudaSuccess) {
      return error;
    }
    product.k = layer_.rows - sizes_.batch;
    product.adds = true;
    return run_.products(product, {{sizes_.at(gradients, sizes_.batch * sizes_.gates)}, {layer_.y}, {to}}, 1);
  }

  cudaError_t weights_of_few_rows() {
    WeightGradients p{};
    p.dtype = run_.dtype;
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
      p.item[p.count++] = {memory_.d_hidden_gates[d], states_before(d), to.dw_hh, to.db_hh, sizes_.hidden};
    }
    return launch_weight_gradients(p, stream_);
  }

  cudaError_t input() {
    if (dx_ == nullptr) {
      return cudaSuccess;
    }
    // Of one column cuDNN's product is with a vector, and in fp32.
    LtProduct product = run_.new_product(plan_.tf32_results && layer_.features > 1);
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
        if (const cudaError_t error = run_.products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
      const cudaError_t error = drops && both ? sum_dropped(begin, count, static_cast<float*>(to), result)
                                : drops       ? drop_dx()
                                : memory_.sums[0] != nullptr
                                    ? launch_round(memory_.sums[0], result, count, run_.dtype, stream_)
                                    : cudaSuccess;
      if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaSuccess;
  }

  // Of one direction all at once, and in place: cuDNN rounds a gradient before dropout, too.
  cudaError_t drop_dx() {
    const Drop drop{dx_, dx_, layer_.rows * layer_.features, layer_.kept_scale, run_.dtype};
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
                      run_.dtype};
    return launch_drop_sum(sum, stream_);
  }

  cudaError_t inputs_of_few_rows() {
    InputGradients p{};
    p.dtype = run_.dtype;
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
    if (layer_.dhx != nullptr && run_.is_step_of_few_rows()) {
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

  void* dx_ = nullptr;
};

}  // namespace

int64_t scratch_bytes(const RnnBackwardPlan& plan, const LayerBackward& layer) {
  return Scratch(plan, layer, LayerSizes(plan, layer), nullptr).bytes;
}

cudaError_t run_layer_backward(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream) {
  const LayerRun run(plan, layer, stream);
  const cudaError_t error = run_gates(run);
  return error == cudaSuccess ? Results(run)() : error;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
