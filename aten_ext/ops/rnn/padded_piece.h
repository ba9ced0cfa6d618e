// Of a packed sequence: the pieces of a layer's input, for each direction, one at a time or all, and one of
// what it puts out, padded.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/math.h"
#include "ops/rnn/layer_call.h"
#include "ops/rnn/packed_sequence.h"

namespace aten_ext::cuda {

class PaddedPiece {
 public:
  // `rows`: of the input that exist at once.
  PaddedPiece(const LayerCall& layer, int64_t rows, int64_t rows_of_piece) : layer_(layer) {
    const RnnProblem& problem = layer.problem();
    x_[0] = layer.input[0].stride(1) == 1 ? layer.input[0] : layer.input[0].contiguous();
    x_[1] = layer.has_two_inputs() ? layer.input[1] : x_[0];  // what dropout left is contiguous
    apart_ = round_up(rows * features(), int64_t{128});  // so that each begins at a multiple of 256 bytes
    input_ = at::empty({problem.directions, apart_}, x_[0].options());
    y_ = at::empty({rows_of_piece, problem.directions * problem.hidden}, x_[0].options());
  }

  // Of the piece: [steps, batch, directions * hidden], contiguous.
  const at::Tensor& y() const {
    return y_;
  }
  // From one direction's input to the other's, in elements.
  int64_t apart() const {
    return apart_;
  }
  // Which piece hold() and pack() are about.
  void take(const Piece& piece) {
    of_ = packed_steps(layer_.packed->rows, piece);
  }
  // The piece's input, to rows from `row` on.
  cudaError_t pad(const Piece& piece, int64_t row) const {
    return launch_pad(layer_.packed->rows,
                      {{x_[0].const_data_ptr(), x_[1].const_data_ptr()},
                       x_[0].stride(0),
                       static_cast<char*>(input_.mutable_data_ptr()) + row * features() * y_.element_size(),
                       apart_,
                       features(),
                       static_cast<int>(y_.element_size()),
                       layer_.problem().directions,
                       packed_steps(layer_.packed->rows, piece)},
                      layer_.stream);
  }
  // The first rows of a direction's input.
  at::Tensor rows(int64_t direction, int64_t count) const {
    return input_.select(0, direction).narrow(0, 0, count * features()).view({count, features()});
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
};

}  // namespace aten_ext::cuda
