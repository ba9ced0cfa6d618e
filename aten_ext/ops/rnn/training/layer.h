// The backward of one layer, both directions: addresses in, kernels and products launched. No ATen here.
//
//   states before each step      a copy of the output, one step later
//   coefficients                 two products and an elementwise kernel over all steps of a chunk; none of it
//                                where the forward saved them
//   gradients of gates           step by step, from the end of the sequence: one launch, or a few a step
//   packed rows of them          of a packed sequence: what follows knows nothing of padding
//
// These go from the last piece of the sequence to the first (ops/rnn/pieces.h).
//
//   weights, biases, input       products over all steps
//
// Of an input that was dropped each direction read a part of its own, and its gradient of the input is masked
// before both are added. x may be what there was before: the weights' gradients then drop it again, where dx
// will be.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ops/rnn/packed_sequence.h"
#include "ops/rnn/pieces.h"
#include "ops/rnn/training/plan.h"

namespace aten_ext::cuda {

// Tensors of the problem's dtype, contiguous unless there is a stride. Of results, nullptr: not wanted.
struct LayerBackwardDirection {
  const void* w_ih;  // [gates * H, features]
  const void* w_hh;  // [gates * H, H]
  const void* b_ih;  // [gates * H] or nullptr
  const void* b_hh;
  void* dw_ih;  // shapes of what they are gradients of
  void* dw_hh;
  void* db_ih;
  void* db_hh;
};

struct LayerBackward {
  LayerBackwardDirection direction[2];
  int64_t features;
  const void* x[2];  // by direction: [steps, batch, features], or packed: [rows, features]
  const void* y;     // [steps, batch, directions * H]
  const void* hx;    // [directions, batch, H]
  const void* cx;    // LSTM: the same
  const void* dy;    // as y, nullptr: zero; if it is padded with strides
  int64_t dy_step, dy_row;
  const void* d_hy;  // as hx; nullptr: zero
  const void* d_cy;
  const uint8_t* kept[2];  // by direction, the bits of dropout (dropout.h); nullptr: there is none
  float kept_scale;
  bool drops_x;  // x is not dropped yet; nothing but gradients of weights reads it then
  bool wants_dx;
  // Where dx goes, as x. Called once nothing that is launched later reads dy, so that its memory may be dx's.
  std::function<void*()> dx_behind_dy;
  void* dhx;  // as hx
  void* dcx;
  const PackedRows* packed;          // of a packed sequence, else nullptr: what has steps is in its rows then
  const std::vector<Piece>* pieces;  // those in which the forward saved, if it did
  const void* coefficients[2];       // by direction, as the forward saved them, if the plan says so
  int64_t rows;                      // of x: those of the packed sequence, or steps * batch
  char* scratch;                     // scratch_bytes() of them, at a multiple of 256
};

int64_t scratch_bytes(const RnnBackwardPlan& plan, const LayerBackward& layer);

// cudaErrorNotSupported: cuBLASLt does not take a product.
cudaError_t run_layer_backward(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream);

}  // namespace aten_ext::cuda
