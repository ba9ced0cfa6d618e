// A layer of a call of _cudnn_rnn at work: its tensors and addresses.
#pragma once

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/checks.h"
#include "ops/rnn/flat_weights.h"
#include "ops/rnn/overrides.h"
#include "ops/rnn/packed_metadata.h"
#include "ops/rnn/pieces.h"
#include "ops/rnn/plan.h"
#include "ops/rnn/training/reserve.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {

// Weights that came as one column of all elements (problem.cpp).
inline at::Tensor as_matrix(const at::Tensor& w, int64_t rows) {
  return w.size(0) == rows ? w : w.view({rows, -1});
}

// The weights of one layer and direction.
struct LayerWeights {
  at::Tensor w_ih, w_hh;
  const void* b_ih;
  const void* b_hh;

  LayerWeights(const args::_cudnn_rnn& a, const RnnProblem& problem, int64_t index) {
    const int64_t first = index * problem.weights();
    w_ih = as_matrix(a.weight[first], problem.gates() * problem.hidden);
    w_hh = as_matrix(a.weight[first + 1], problem.gates() * problem.hidden);
    b_ih = bias(a, problem, index, 2);
    b_hh = bias(a, problem, index, 3);
  }

 private:
  // Of a layer without biases it is what weight_buf has in their place, zeros or not: cuDNN reads them.
  static const void* bias(const args::_cudnn_rnn& a, const RnnProblem& problem, int64_t index, int64_t kind) {
    if (problem.biases) {
      return a.weight[index * problem.weights() + kind].const_data_ptr();
    }
    return is_given(a.weight_buf)
               ? static_cast<const char*>(a.weight_buf->const_data_ptr()) +
                     FlatWeights(problem).offset(index, kind) * a.weight_buf->element_size()
               : nullptr;
  }
};

// A layer at work. The first reads the call's input, the others what the layer before wrote.
struct LayerCall {
  const RnnPlan& plan;
  const args::_cudnn_rnn& call;
  int64_t index;
  Layout layout;        // of the input
  at::Tensor input[2];  // by direction: [steps, batch, features]; one tensor, unless packed or dropped
  at::Tensor hx, hy;
  at::Tensor cx, cy;  // of an LSTM; without cx it is zero
  at::Tensor y;       // [steps, batch, directions * hidden], packed [rows, directions * hidden]
  cudaStream_t stream;
  const PackedMetadata* packed;  // or nullptr
  at::Tensor reserve;            // what a backward needs; in inference empty
  const Reserve& places;         // in it

  const RnnProblem& problem() const {
    return plan.problem;
  }
  bool has_two_inputs() const {
    return problem().directions == 2 && !input[0].is_same(input[1]);
  }
  // In the list of weights and in the states.
  int64_t index_of(int64_t direction) const {
    return index * problem().directions + direction;
  }
  LayerWeights weights(int64_t direction) const {
    return {call, problem(), index_of(direction)};
  }
  // Where a direction saves the coefficients of a piece; nullptr: nowhere.
  void* coefficients(int direction, const Piece& piece) const {
    if (!plan.saves) {
      return nullptr;
    }
    const int64_t row_bytes = coefficients_of(problem().cell) * problem().hidden * y.element_size();
    return static_cast<char*>(reserve.mutable_data_ptr()) + places.coefficients_offset(index, direction) +
           piece.row[direction] * row_bytes;
  }
};

// The columns of an output that are a direction's.
inline char* columns_of(const LayerCall& layer, const at::Tensor& y, int64_t direction) {
  return static_cast<char*>(y.mutable_data_ptr()) + direction * layer.problem().hidden * y.element_size();
}

}  // namespace aten_ext::cuda
