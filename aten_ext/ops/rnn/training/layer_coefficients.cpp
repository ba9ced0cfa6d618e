// The coefficients of a layer's gradients where no forward saved them, and the states before steps.
#ifdef ATEN_EXT_WITH_CUDA

#include <algorithm>

#include "ops/rnn/cudnn_facts.h"
#include "ops/rnn/training/copies.h"
#include "ops/rnn/training/few_rows.h"
#include "ops/rnn/training/layer_run.h"
#include "ops/rnn/training/packed.h"
#include "ops/rnn/training/recompute.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

class Coefficients : LayerPart {
 public:
  using LayerPart::LayerPart;

  // The states before steps.
  cudaError_t states() const {
    return sizes_.is_packed ? packed_previous_states() : previous_states();
  }

  // What there has to be before the first piece: these, and of an LSTM the cell states behind pieces.
  cudaError_t prepare() const {
    cudaError_t error = plan_.saved ? cudaSuccess : states();
    const auto last = static_cast<int64_t>(sizes_.pieces.size()) - 1;
    for (int64_t i = 0; error == cudaSuccess && sizes_.is_lstm && !plan_.saved && i < last; ++i) {
      error = recompute(i, true);
    }
    return error;
  }

  // The coefficients of a piece; or of an LSTM only the cell state behind it.
  cudaError_t recompute(int64_t index, bool only_boundary) const {
    if (plan_.saved) {
      return cudaSuccess;
    }
    const Piece& piece = sizes_.pieces[index];
    cudaError_t error = sizes_.is_packed ? pad_for_gates(piece) : cudaSuccess;
    for (int64_t done = 0; error == cudaSuccess && done < piece.steps; done += plan_.part) {
      error = recompute_part(piece, piece.first + done, std::min(plan_.part, piece.steps - done));
    }
    if (error == cudaSuccess && sizes_.is_lstm) {
      error = scan(index, only_boundary);
    }
    return error == cudaSuccess && sizes_.is_packed && !only_boundary && !piece.full
               ? pass_where_no_row_is(piece)
               : error;
  }

 private:
  int64_t coefficients() const {
    return coefficients_of(run_.cell) * sizes_.hidden;
  }
  PackedSteps steps_of(const Piece& piece) const {
    return packed_steps(*layer_.packed, piece);
  }
  // The states before all steps.
  cudaError_t previous_states() const {
    if (memory_.previous[0] == nullptr) {
      return cudaSuccess;
    }
    return launch_previous_states({layer_.y, layer_.hx, memory_.previous[0], run_.dtype, directions_,
                                   sizes_.steps, sizes_.batch, sizes_.hidden, runs_beside_gates()},
                                  stream_);
  }
  // Of a packed sequence: for the gradients of weights, all of them in its rows.
  cudaError_t packed_previous_states() const {
    if (memory_.packed_previous[0] == nullptr) {
      return cudaSuccess;
    }
    const PackedSteps all{{0, 0}, static_cast<int>(sizes_.steps), static_cast<int>(sizes_.batch)};
    return launch_packed_previous_states(*layer_.packed, all,
                                         {layer_.y,
                                          layer_.hx,
                                          {memory_.packed_previous[0], memory_.packed_previous[1]},
                                          false,
                                          sizes_.hidden,
                                          directions_,
                                          runs_beside_gates()},
                                         run_.dtype, stream_);
  }
  bool runs_beside_gates() const {
    return plan_.saved && plan_.overlaps;
  }
  // And for the gates what they are made of, padded.
  cudaError_t pad_for_gates(const Piece& piece) const {
    const PackedSteps of = steps_of(piece);
    cudaError_t error = cudaSuccess;
    if (memory_.padded_x[0] != nullptr) {
      const char* const first = static_cast<const char*>(memory_.padded_x[0]);
      const int64_t apart =
          directions_ == 2 ? (static_cast<const char*>(memory_.padded_x[1]) - first) / sizes_.bytes : 0;
      error = launch_pad(*layer_.packed,
                         {{layer_.x[0], layer_.x[1]},
                          layer_.features,
                          memory_.padded_x[0],
                          apart,
                          layer_.features,
                          static_cast<int>(sizes_.bytes),
                          directions_,
                          of},
                         stream_);
    }
    if (error == cudaSuccess && memory_.previous[0] != nullptr) {
      error = launch_packed_previous_states(*layer_.packed, of,
                                            {layer_.y,
                                             layer_.hx,
                                             {memory_.previous[0], memory_.previous[1]},
                                             true,
                                             sizes_.hidden,
                                             directions_,
                                             false},
                                            run_.dtype, stream_);
    }
    if (error == cudaSuccess && memory_.padded_y != nullptr) {
      const UnpackRows unpack[kMostUnpacked] = {{layer_.y, nullptr, memory_.padded_y}};
      error = launch_unpack(*layer_.packed, of, unpack, 1, sizes_.hidden, directions_, run_.dtype, stream_);
    }
    return error;
  }

  // Of `steps` steps from a direction's step `first` on.
  cudaError_t recompute_part(const Piece& piece, int64_t first, int64_t steps) const {
    RecomputeParams p{};
    p.directions = directions_;
    p.cell = run_.cell;
    p.dtype = run_.dtype;
    p.rows = steps * piece.batch;
    p.hidden = sizes_.hidden;
    p.h_row = sizes_.is_gru ? sizes_.hidden : directions_ * sizes_.hidden;
    Operands x{}, h{};
    for (int d = 0; d < directions_; ++d) {
      const LayerBackwardDirection& weights = layer_.direction[d];
      const int64_t row = sizes_.row(piece, d, first, steps);
      RecomputeDirection& to = p.direction[d];
      to.input_gates = memory_.input_gates[d];
      to.hidden_gates = memory_.hidden_gates[d];
      to.b_ih = weights.b_ih;
      to.b_hh = weights.b_hh;
      const void* const y = sizes_.is_packed ? memory_.padded_y : layer_.y;
      to.h = sizes_.is_gru ? run_.states_before(piece, d, first, steps)
                           : moved(sizes_, y, (row * directions_ + d) * sizes_.hidden);
      to.coefficients =
          memory_.coefficients[d] + sizes_.time_in(piece, d, first, steps) * piece.batch * coefficients();
      if (sizes_.is_gru || sizes_.is_lstm) {
        x.rows[d] = sizes_.at(sizes_.is_packed ? memory_.padded_x[d] : layer_.x[d], row * layer_.features);
        x.w[d] = weights.w_ih;
        x.to[d] = memory_.input_gates[d];
        h.rows[d] = run_.states_before(piece, d, first, steps);
        h.w[d] = weights.w_hh;
        h.to[d] = memory_.hidden_gates[d];
      }
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

  cudaError_t gate_products(const Operands& x, const Operands& h, int64_t rows) const {
    // Rows of no whole vectors in fp32: never less accurate than the forward.
    LtProduct product = run_.new_product(plan_.tf32 && layer_.features % kTf32Vector == 0);
    product.m = sizes_.gates;
    product.n = rows;
    product.k = layer_.features;
    if (const cudaError_t error = run_.products(product, x, directions_); error != cudaSuccess) {
      return error;
    }
    product.tf32 = plan_.tf32;
    product.k = sizes_.hidden;
    product.adds = sizes_.is_lstm;
    return run_.products(product, h, directions_);
  }

  cudaError_t gates_of_few_rows(const Operands& x, const Operands& h, int64_t rows) const {
    GateProducts p{};
    p.dtype = run_.dtype;
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

  cudaError_t scan(int64_t index, bool only_boundary) const {
    const Piece& piece = sizes_.pieces[index];
    ScanParams p{};
    p.directions = directions_;
    p.dtype = run_.dtype;
    p.steps = piece.steps;
    p.batch = piece.batch;
    p.hidden = sizes_.hidden;
    for (int d = 0; d < directions_; ++d) {
      ScanDirection& to = p.direction[d];
      to.c0 = index == 0 && layer_.cx != nullptr ? sizes_.at(layer_.cx, d * sizes_.state()) : nullptr;
      to.c0_fp32 = index == 0 ? nullptr : boundary(index - 1, d);
      to.coefficients = memory_.coefficients[d];
      to.c_end = only_boundary ? boundary(index, d) : nullptr;
    }
    return launch_scan(p, stream_);
  }
  // The cell state behind a piece.
  float* boundary(int64_t index, int direction) const {
    return memory_.boundaries + (index * directions_ + direction) * sizes_.state();
  }
  cudaError_t pass_where_no_row_is(const Piece& piece) const {
    const PassRows pass{
        {memory_.coefficients[0], memory_.coefficients[1]}, sizes_.hidden, directions_, steps_of(piece)};
    return launch_pass_coefficients(*layer_.packed, pass, Dtype::Float, run_.cell, stream_);
  }
};

}  // namespace

cudaError_t prepare_coefficients(const LayerRun& run) {
  return Coefficients(run).prepare();
}

cudaError_t states_beside_gates(const LayerRun& run) {
  return run.plan.saved ? Coefficients(run).states() : cudaSuccess;
}

cudaError_t coefficients_of_piece(const LayerRun& run, int64_t index) {
  return Coefficients(run).recompute(index, false);
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
