// What a call of _cudnn_rnn asks for, as plain data. Standard library only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/sequence.h"

namespace aten_ext::args {
struct _cudnn_rnn;
}

namespace aten_ext::cuda {

// What a packed sequence in training may take beyond its rows before it is padded in several pieces
// (pieces.h).
struct PieceLimits {
  int64_t bytes = int64_t{32} << 20;
  int64_t steps = 16;  // of a piece, at least
};

struct RnnProblem {
  Cell cell;
  Dtype dtype;
  bool tf32_allowed;  // torch.backends.cudnn.rnn.fp32_precision, or allow_tf32 of cuDNN; not that of matmul
  bool biases;
  bool batch_first;
  bool given_packed;  // as rows of a packed sequence, whatever their lengths: upstream runs it step by step
  bool train;
  bool differentiated;  // somebody will ask for gradients
  bool captured;        // into a CUDA graph, whose replays cost the GPU's time alone
  double dropout;
  int layers;
  int directions;
  int64_t hidden;
  Sequence sequence;
  PieceLimits piece_limits;

  int gates() const {
    return gates_of(cell);
  }
  bool is_16_bits() const {
    return dtype != Dtype::Float;
  }
  // Whether something is dropped between two layers.
  bool drops() const {
    return train && layers > 1 && dropout != 0.0;
  }
  // Features that the layer with the most of them reads.
  int64_t input() const {
    return layers > 1 ? std::max(sequence.features, hidden * directions) : sequence.features;
  }
  // Tensors of a layer and direction in the list of weights: w_ih, w_hh, and b_ih, b_hh.
  int weights() const {
    return biases ? 4 : 2;
  }
};

// The problem, or the reason why it is none of ours; nullptr: it is. `saved`: the weights are what autograd
// saved of a forward, each wherever it lies, be it of one column.
const char* problem_of(const args::_cudnn_rnn& arguments, RnnProblem& problem, bool saved = false);

}  // namespace aten_ext::cuda
