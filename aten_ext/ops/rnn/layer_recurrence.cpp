#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/layer_recurrence.h"

#include <ATen/cuda/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include <optional>
#include <utility>
#include <vector>

#include "ops/rnn/padded_piece.h"
#include "ops/rnn/projection.h"
#include "ops/rnn/recurrence.h"
#include "ops/rnn/training/packed.h"

namespace aten_ext::cuda {
namespace {

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

// The steps of a piece, in the order of time, as rows for one GEMM.
Rows rows_of_piece(const LayerCall& layer, int direction, const Piece& piece) {
  const Sequence& sequence = layer.problem().sequence;
  const at::Tensor& input = layer.input[direction];
  if (piece.steps == sequence.steps) {
    return as_rows(input, layer.layout);
  }
  // Copied, unless it is contiguous in time.
  return as_rows(input.narrow(0, time_of(sequence, direction, piece.first, piece.steps), piece.steps),
                 Layout::TimeMajor);
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

class LayerRecurrence {
 public:
  explicit LayerRecurrence(const LayerCall& layer)
      : layer_(layer),
        problem_(layer.problem()),
        pieces_(layer.plan.pieces),
        gates_(problem_.gates() * problem_.hidden),
        together_(are_projected_together(problem_, pieces_, layer.plan.saves)) {
    const int64_t rows = together_ ? rows_of(pieces_) : most_rows_of(pieces_);
    if (layer.packed != nullptr) {
      padded_.emplace(layer, rows, most_rows_of(pieces_));
    }
    p_.directions = problem_.directions;
    p_.cell = problem_.cell;
    p_.dtype = problem_.dtype;
    p_.hidden = static_cast<int>(problem_.hidden);
    projection_.directions = p_.directions;
    projection_.n_of_all = problem_.sequence.steps * problem_.sequence.batch;
    projection_.rows_stride = padded_.has_value() ? padded_->apart() : 0;
    projection_.how = layer.plan.projection[layer.index > 0];
    for (int direction = 0; direction < p_.directions; ++direction) {
      const LayerWeights weights = layer.weights(direction);
      projection_.w[direction] = weights.w_ih;
      p_.direction[direction].w_hh = weights.w_hh.const_data_ptr();
      p_.direction[direction].b_ih = weights.b_ih;
      p_.direction[direction].b_hh = weights.b_hh;
    }
    memory_ = at::detail::empty_cuda({projection_elements(rows, gates_, p_.directions)}, at::kFloat,
                                     layer.y.device(), std::nullopt);
    if (layer.plan.recurrence.words > 0) {
      // Of this call alone: two streams, two threads or two replays of different graphs share none of it.
      words_ = at::empty({layer.plan.recurrence.words}, layer.y.options().dtype(at::kLong));
      p_.words = reinterpret_cast<uint64_t*>(words_.mutable_data_ptr<int64_t>());
    }
  }

  cudaError_t operator()() {
    if (together_) {
      if (const cudaError_t error = project_all(); error != cudaSuccess) {
        return error;
      }
    }
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const bool last = i + 1 == pieces_.size();
      if (!last || padded_.has_value()) {  // hy of a packed sequence is packed with its output
        after_.emplace(layer_);
      }
      if (const cudaError_t error = run(pieces_[i], i == 0, last); error != cudaSuccess) {
        return error;
      }
      if (!last && padded_.has_value() && layer_.cy.defined()) {
        keep_cell_states(pieces_[i + 1].batch, pieces_[i].batch);
      }
      before_ = std::move(after_);
      after_.reset();
    }
    return cudaSuccess;
  }

 private:
  cudaError_t run(const Piece& piece, bool first, bool last) {
    p_.steps = piece.steps;
    p_.batch = static_cast<int>(piece.batch);
    p_.plan = of_fewer_rows(problem_, layer_.plan.recurrence, piece.batch);
    const float* projected[2] = {};
    if (const cudaError_t error = project(piece, projected); error != cudaSuccess) {
      return error;
    }
    if (padded_.has_value() && layer_.cy.defined() && !piece.full) {
      if (const cudaError_t error = padded_->hold(projected); error != cudaSuccess) {
        return error;
      }
    }
    for (int direction = 0; direction < p_.directions; ++direction) {
      p_.direction[direction].projection = projected[direction];
      set_states(direction, first, last);
      set_results(direction, piece);
    }
    if (words_.defined()) {
      words_.zero_();
    }
    if (const cudaError_t error = launch_recurrence(p_, layer_.stream); error != cudaSuccess) {
      return error;
    }
    if (padded_.has_value()) {
      if (const cudaError_t error = padded_->pack(); error != cudaSuccess) {
        return error;
      }
    }
    return padded_.has_value() && layer_.plan.saves && !piece.full ? pass_where_no_row_is(piece)
                                                                   : cudaSuccess;
  }

  // The input of all pieces, one behind the other, in one product.
  cudaError_t project_all() {
    int64_t row = 0;
    for (const Piece& piece : pieces_) {
      if (const cudaError_t error = padded_->pad(piece, row); error != cudaSuccess) {
        return error;
      }
      row += piece.rows();
    }
    return project_padded(row, all_projected_);
  }

  cudaError_t project_padded(int64_t rows, const float* (&projected)[2]) {
    projection_.rows[0] = padded_->rows(0, rows);
    projection_.rows[1] = p_.directions == 2 ? padded_->rows(1, rows) : projection_.rows[0];
    return project_input(projection_, memory_, projected, layer_.stream);
  }

  cudaError_t project(const Piece& piece, const float* (&projected)[2]) {
    if (!padded_.has_value()) {
      return project_steps(piece, projected);
    }
    padded_->take(piece);
    p_.projection_step = piece.batch * gates_;
    p_.projection_row = gates_;
    if (together_) {
      for (int direction = 0; direction < p_.directions; ++direction) {
        projected[direction] = all_projected_[direction] + rows_before_ * gates_;
      }
      rows_before_ += piece.rows();
      return cudaSuccess;
    }
    const cudaError_t error = padded_->pad(piece, 0);
    return error != cudaSuccess ? error : project_padded(piece.rows(), projected);
  }

  cudaError_t project_steps(const Piece& piece, const float* (&projected)[2]) {
    const Rows rows = rows_of_piece(layer_, 0, piece);
    const bool same_rows =
        p_.directions == 1 || (piece.steps == problem_.sequence.steps && !layer_.has_two_inputs());
    projection_.rows[0] = rows.matrix;
    projection_.rows[1] = same_rows ? rows.matrix : rows_of_piece(layer_, 1, piece).matrix;
    p_.projection_step = rows.step * gates_;
    p_.projection_row = rows.row * gates_;
    return project_input(projection_, memory_, projected, layer_.stream);
  }

  void set_states(int direction, bool first, bool last) {
    const int64_t index = layer_.index_of(direction);
    RecurrenceDirection& d = p_.direction[direction];
    d.h0 = first ? layer_.hx.select(0, index).const_data_ptr() : before_->h.of(direction);
    d.h0_fp32 = first ? nullptr : before_->h.fp32_of(direction);
    d.hy = after_.has_value() ? after_->h.of(direction) : layer_.hy.select(0, index).mutable_data_ptr();
    d.hy_fp32 = last ? nullptr : after_->h.fp32_of(direction);
    if (layer_.cy.defined()) {
      d.c0 = !first                ? before_->c->of(direction)
             : layer_.cx.defined() ? layer_.cx.select(0, index).const_data_ptr()
                                   : nullptr;
      d.c0_fp32 = first ? nullptr : before_->c->fp32_of(direction);
      d.cy = last ? layer_.cy.select(0, index).mutable_data_ptr() : after_->c->of(direction);
      d.cy_fp32 = last ? nullptr : after_->c->fp32_of(direction);
    }
  }

  void set_results(int direction, const Piece& piece) {
    RecurrenceDirection& d = p_.direction[direction];
    d.coefficients = layer_.coefficients(direction, piece);
    if (padded_.has_value()) {
      const int64_t width = padded_->y().size(1);
      p_.y_step = piece.batch * width;
      p_.y_row = width;
      d.y = columns_of(layer_, padded_->y(), direction);
      return;
    }
    const at::Tensor& y = layer_.y;
    p_.y_step = y.stride(0);
    p_.y_row = y.stride(1);
    const int64_t time = time_of(problem_.sequence, direction, piece.first, piece.steps);
    d.y = columns_of(layer_, y, direction) + time * y.stride(0) * y.element_size();
  }

  // Of an LSTM the cell states of rows that are in no later piece.
  void keep_cell_states(int64_t from, int64_t to) {
    if (from < to) {
      layer_.cy.narrow(0, layer_.index_of(0), p_.directions)
          .narrow(1, from, to - from)
          .copy_(after_->c->rounded.narrow(1, from, to - from));
    }
  }

  // Of a packed sequence: what its backward reads where there is no row.
  cudaError_t pass_where_no_row_is(const Piece& piece) const {
    PassRows pass{{}, problem_.hidden, problem_.directions, packed_steps(layer_.packed->rows, piece)};
    for (int d = 0; d < problem_.directions; ++d) {
      pass.coefficients[d] = layer_.coefficients(d, piece);
    }
    return launch_pass_coefficients(layer_.packed->rows, pass, problem_.dtype, problem_.cell, layer_.stream);
  }

  const LayerCall& layer_;
  const RnnProblem& problem_;
  const std::vector<Piece>& pieces_;
  const int64_t gates_;  // of a row
  const bool together_;  // the input of all pieces is projected before the first
  const float* all_projected_[2] = {};
  int64_t rows_before_ = 0;  // of the pieces that are done
  std::optional<PaddedPiece> padded_;
  RecurrenceParams p_{};
  InputProjection projection_{};
  at::Tensor memory_, words_;
  std::optional<Carried> before_, after_;
};

}  // namespace

cudaError_t run_recurrence(const LayerCall& layer) {
  return LayerRecurrence(layer)();
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
