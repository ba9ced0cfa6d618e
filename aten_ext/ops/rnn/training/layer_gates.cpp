// The sequential part of a layer's backward, piece by piece.
#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/backward/recurrence_backward.h"
#include "ops/rnn/training/copies.h"
#include "ops/rnn/training/layer_run.h"
#include "ops/rnn/training/packed.h"
#include "ops/rnn/training/sizes.h"
#include "ops/rnn/training/step.h"

namespace aten_ext::cuda {
namespace {

class Gates : LayerPart {
 public:
  using LayerPart::LayerPart;

  cudaError_t operator()() {
    const auto last = static_cast<int64_t>(sizes_.pieces.size()) - 1;
    cudaError_t error = prepare_coefficients(run_);
    if (error == cudaSuccess && brings_rows()) {
      error = fill_passed();
    }
    for (int64_t i = last; error == cudaSuccess && i >= 0; --i) {
      error = coefficients_of_piece(run_, i);
      if (error == cudaSuccess && sizes_.is_packed && memory_.padded_dy != nullptr) {
        error = pad_dy(sizes_.pieces[i]);
      }
      if (error == cudaSuccess) {
        error = plan_.one_launch ? one_launch(i) : step_by_step(i);
      }
      if (error == cudaSuccess && i == 0) {
        error = states_beside_gates(run_);
      }
      if (error == cudaSuccess && sizes_.is_packed) {
        error = pack(sizes_.pieces[i]);
      }
    }
    return error;
  }

 private:
  int64_t coefficients() const {
    return coefficients_of(run_.cell) * sizes_.hidden;
  }
  PackedSteps steps_of(const Piece& piece) const {
    return packed_steps(*layer_.packed, piece);
  }

  // Of a packed sequence it is in dy.
  const void* d_hy() const {
    return sizes_.is_packed ? nullptr : layer_.d_hy;
  }
  // What comes from outside: the first in time of `count` steps.
  const void* dy_at(const Piece& piece, int direction, int64_t first, int64_t count) const {
    if (sizes_.is_packed) {
      return moved(sizes_, memory_.padded_dy,
                   (sizes_.row(piece, direction, first, count) * directions_ + direction) * sizes_.hidden);
    }
    const int64_t time = sizes_.time(direction, first, count);
    return moved(sizes_, layer_.dy, time * layer_.dy_step + direction * sizes_.hidden);
  }
  int64_t dy_row() const {
    return sizes_.is_packed ? directions_ * sizes_.hidden : layer_.dy_row;
  }
  int64_t dy_step(const Piece& piece) const {
    return sizes_.is_packed ? piece.batch * dy_row() : layer_.dy_step;
  }
  cudaError_t pad_dy(const Piece& piece) const {
    const UnpackRows unpack[kMostUnpacked] = {{layer_.dy, layer_.d_hy, memory_.padded_dy}};
    return launch_unpack(*layer_.packed, steps_of(piece), unpack, 1, sizes_.hidden, directions_, run_.dtype,
                         stream_);
  }

  // Where a piece gets the gradients of its states from, and leaves them.
  struct Passed {
    float *dh, *dc;
  };
  Passed passed_to(int64_t index) const {
    return plan_.one_launch ? Passed{memory_.passed_dh[(index + 1) % 2], memory_.passed_dc[(index + 1) % 2]}
                            : Passed{memory_.dh, memory_.dc};
  }

  // Whether rows come in from piece to piece.
  bool brings_rows() const {
    return sizes_.pieces.back().batch < sizes_.batch;
  }
  // Each comes with the gradient of its own cy, and with none of hy, which dy has in it.
  cudaError_t fill_passed() const {
    const int64_t count = directions_ * sizes_.state();
    const auto fill = [&](float* to, const void* from) {
      if (to == nullptr) {
        return cudaSuccess;
      }
      const size_t bytes = static_cast<size_t>(count) * sizeof(float);
      return from == nullptr     ? cudaMemsetAsync(to, 0, bytes, stream_)
             : run_.is_16_bits() ? launch_widen(from, to, count, run_.dtype, stream_)
                                 : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_);
    };
    cudaError_t error = cudaSuccess;
    // Of both buffers: what a piece writes are its own rows.
    for (int64_t i = 0; error == cudaSuccess && i < (plan_.one_launch ? 2 : 1); ++i) {
      const Passed passed = passed_to(i);
      error = fill(passed.dh, nullptr);
      if (error == cudaSuccess) {
        error = fill(passed.dc, layer_.d_cy);
      }
    }
    return error;
  }

  cudaError_t step_by_step(int64_t index) const {
    const Piece& piece = sizes_.pieces[index];
    StepParams p{};
    p.directions = directions_;
    p.cell = run_.cell;
    p.dtype = run_.dtype;
    p.batch = piece.batch;
    p.hidden = sizes_.hidden;
    p.dy_row = dy_row();
    LtProduct product = run_.new_product(plan_.tf32);
    product.m = sizes_.hidden;
    product.n = piece.batch;
    product.k = sizes_.gates;
    product.w_by_column = true;
    product.adds = sizes_.is_gru;
    for (int64_t step = piece.first + piece.steps - 1; step >= piece.first; --step) {
      p.first = step == sizes_.steps - 1 && !brings_rows();
      for (int d = 0; d < directions_; ++d) {
        const int64_t gates = sizes_.row(piece, d, step, 1) * sizes_.gates;
        const int64_t states = d * sizes_.state();
        StepDirection& to = p.direction[d];
        to.coefficients =
            memory_.coefficients[d] + sizes_.time_in(piece, d, step, 1) * piece.batch * coefficients();
        to.dy = dy_at(piece, d, step, 1);
        to.d_hy = moved(sizes_, d_hy(), states);
        to.d_cy = moved(sizes_, layer_.d_cy, states);
        to.d_hidden_gates = sizes_.at(memory_.d_hidden_gates[d], gates);
        to.d_input_gates = sizes_.is_gru ? sizes_.at(memory_.d_input_gates[d], gates) : nullptr;
        to.dh = memory_.dh + states;
        to.dc = sizes_.is_lstm ? memory_.dc + states : nullptr;
      }
      if (const cudaError_t error = launch_step(p, stream_); error != cudaSuccess) {
        return error;
      }
      if (step == 0 && (layer_.dhx == nullptr || run_.is_step_of_few_rows())) {
        break;
      }
      // The distances between two directions' operands change from step to step: no batch.
      for (int d = 0; d < directions_; ++d) {
        const StepDirection& of = p.direction[d];
        const Operands own{{of.d_hidden_gates}, {layer_.direction[d].w_hh}, {of.dh}};
        if (const cudaError_t error = run_.products(product, own, 1); error != cudaSuccess) {
          return error;
        }
      }
    }
    return cudaSuccess;
  }

  cudaError_t one_launch(int64_t index) const {
    const Piece& piece = sizes_.pieces[index];
    const bool last = index + 1 == static_cast<int64_t>(sizes_.pieces.size());
    RecurrenceBackwardParams p{};
    p.directions = directions_;
    p.cell = run_.cell;
    p.dtype = run_.dtype;
    p.tf32 = plan_.tf32;
    p.saved = plan_.saved;
    p.steps = piece.steps;
    p.batch = static_cast<int>(piece.batch);
    p.hidden = static_cast<int>(sizes_.hidden);
    p.dy_step = dy_step(piece);
    p.dy_row = dy_row();
    p.plan = of_fewer_rows(plan_.problem, plan_.recurrence, piece.batch);
    p.words = memory_.words;
    const float* dh_in = passed_to(index).dh;
    const float* dc_in = passed_to(index).dc;
    if (last && !brings_rows()) {
      if (const cudaError_t error = widen_states(dh_in, dc_in, passed_to(index)); error != cudaSuccess) {
        return error;
      }
    }
    float* const dh_out = index == 0 ? memory_.dh : passed_to(index - 1).dh;
    float* const dc_out = index == 0 ? memory_.dc : passed_to(index - 1).dc;
    for (int d = 0; d < directions_; ++d) {
      const int64_t gates = sizes_.row(piece, d, piece.first, piece.steps) * sizes_.gates;
      const auto of = [&](auto* states) { return states == nullptr ? nullptr : states + d * sizes_.state(); };
      BackwardDirection& to = p.direction[d];
      to.w_hh = layer_.direction[d].w_hh;
      to.coefficients = plan_.saved ? moved(sizes_, layer_.coefficients[d], piece.row[d] * coefficients())
                                    : memory_.coefficients[d];
      to.dy = dy_at(piece, d, piece.first, piece.steps);
      to.dh_in = of(dh_in);
      to.dc_in = of(dc_in);
      to.d_hidden_gates = sizes_.at(memory_.d_hidden_gates[d], gates);
      to.d_input_gates = sizes_.is_gru ? sizes_.at(memory_.d_input_gates[d], gates) : nullptr;
      to.dh_out = of(dh_out);
      to.dc_out = of(dc_out);
    }
    if (p.plan.words > 0) {
      if (const cudaError_t error =
              cudaMemsetAsync(memory_.words, 0, p.plan.words * sizeof(uint64_t), stream_);
          error != cudaSuccess) {
        return error;
      }
    }
    return launch_recurrence_backward(p, stream_);
  }

  // The gradients of hy and cy in fp32: as they are, or in memory that the last piece passes nothing in.
  cudaError_t widen_states(const float*& dh, const float*& dc, const Passed& memory) const {
    const int64_t count = directions_ * sizes_.state();
    const auto widen = [&](const void* from, float* in, const float*& to) {
      if (from == nullptr || !run_.is_16_bits()) {
        to = static_cast<const float*>(from);
        return cudaSuccess;
      }
      to = in;
      return launch_widen(from, in, count, run_.dtype, stream_);
    };
    const cudaError_t error = widen(d_hy(), memory.dh, dh);
    return error == cudaSuccess ? widen(layer_.d_cy, memory.dc, dc) : error;
  }

  // What the results of a packed sequence are made of, in its rows.
  cudaError_t pack(const Piece& piece) const {
    PackRows rows[kMostPacked];
    int count = 0;
    const auto add = [&](const void* padded, void* to, int64_t width, int direction) {
      if (to != nullptr) {
        rows[count++] = {padded, to, width, sizes_.gates, direction};
      }
    };
    for (int d = 0; d < directions_; ++d) {
      add(memory_.d_input_gates[d], memory_.packed_d_input[d], sizes_.gates, d);
      if (sizes_.is_gru) {
        const int64_t others = sizes_.gates - sizes_.hidden;
        add(sizes_.at(memory_.d_hidden_gates[d], others), memory_.packed_d_hidden[d], sizes_.hidden, d);
      }
    }
    return count > 0 ? launch_pack_rows(*layer_.packed, steps_of(piece), rows, count, run_.dtype, stream_)
                     : cudaSuccess;
  }
};

}  // namespace

cudaError_t run_gates(const LayerRun& run) {
  return Gates(run)();
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
