// Of a packed sequence: a piece of a layer's input, for each direction, and of what it puts out, padded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "core/math.h"
#include "ops/rnn/layer_call.h"
#include "ops/rnn/packed_sequence.h"

namespace aten_ext::cuda {

// A sequence as a matrix of rows for one GEMM, and where the row of a step and a batch row is.
struct Rows {
  at::Tensor matrix;  // [steps * batch, features]
  int64_t step, row;  // in rows
};

class PaddedPiece {
 public:
  PaddedPiece(const LayerCall& layer, const std::vector<Piece>& pieces) : layer_(layer) {
    const RnnProblem& problem = layer.problem();
    const int64_t rows = most_rows_of(pieces);
    x_[0] = layer.input[0].stride(1) == 1 ? layer.input[0] : layer.input[0].contiguous();
    x_[1] = layer.has_two_inputs() ? layer.input[1] : x_[0];  // what dropout left is contiguous
    apart_ = round_up(rows * features(), int64_t{128});  // so that each begins at a multiple of 256 bytes
    input_ = at::empty({problem.directions, apart_}, x_[0].options());
    y_ = at::empty({rows, problem.directions * problem.hidden}, x_[0].options());
  }

  // Of the piece: [steps, batch, directions * hidden], contiguous.
  const at::Tensor& y() const {
    return y_;
  }
  // From one direction's input to the other's, in elements.
  int64_t apart() const {
    return apart_;
  }
  cudaError_t pad(const Piece& piece) {
    rows_ = piece.rows();
    batch_ = piece.batch;
    of_ = packed_steps(layer_.packed->rows, piece);
    return launch_pad(layer_.packed->rows,
                      {{x_[0].const_data_ptr(), x_[1].const_data_ptr()},
                       x_[0].stride(0),
                       input_.mutable_data_ptr(),
                       apart_,
                       features(),
                       static_cast<int>(y_.element_size()),
                       layer_.problem().directions,
                       of_},
                      layer_.stream);
  }
  Rows rows(int64_t direction) const {
    const at::Tensor elements = input_.select(0, direction).narrow(0, 0, rows_ * features());
    return {elements.view({rows_, features()}), batch_, 1};
  }
  // To the layer's output, and its part of hy.
  cudaError_t pack() const {
    const RnnProblem& problem = layer_.problem();
    return launch_pack(layer_.packed->rows,
                       {y_.const_data_ptr(), layer_.y.mutable_data_ptr(),
                        layer_.hy.select(0, layer_.index_of(0)).mutable_data_ptr(), problem.hidden,
                        static_cast<int>(y_.element_size()), problem.directions, of_},
                       layer_.stream);
  }
  // Lets an LSTM keep its cell state where there is no row.
  cudaError_t hold(const float* const (&projected)[2]) const {
    const RnnProblem& problem = layer_.problem();
    return launch_hold(layer_.packed->rows,
                       {{const_cast<float*>(projected[0]), const_cast<float*>(projected[1])},
                        problem.hidden,
                        problem.directions,
                        of_},
                       layer_.stream);
  }

 private:
  int64_t features() const {
    return x_[0].size(1);
  }

  const LayerCall& layer_;
  at::Tensor x_[2];
  at::Tensor input_, y_;
  int64_t apart_;
  PackedSteps of_{};
  int64_t rows_ = 0;
  int64_t batch_ = 0;
};

}  // namespace aten_ext::cuda
