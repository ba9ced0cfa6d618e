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

// Up to here a packed sequence is padded in one piece (pieces.h): bytes beyond those of its rows; and
// multiply-adds of rows that do not exist, which take about as long as a piece more. Of the pieces that
// memory asks for each but the first has so many steps at least.
struct PieceLimits {
  int64_t bytes, steps, products;
};
constexpr PieceLimits kPiecesInTraining{int64_t{32} << 20, 12, 2'500'000'000};
// Of a forward that saves nothing. Beside its outputs upstream was seen to take 48 MiB and more, and gates
// and a state for each row in the tensors' dtype.
constexpr PieceLimits kPiecesOfForward{int64_t{64} << 20, 32, 1'000'000'000};

// Whether rows of the input and of the state are whole vectors of 16 bytes.
constexpr bool are_vectors(bool sixteen_bits, int64_t input, int64_t hidden) {
  const int64_t vector = sixteen_bits ? 8 : 4;
  return input % vector == 0 && hidden % vector == 0;
}

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
  PieceLimits in_training = kPiecesInTraining;
  PieceLimits of_forward = kPiecesOfForward;

  int gates() const {
    return gates_of(cell);
  }
  bool is_16_bits() const {
    return dtype != Dtype::Float;
  }
  bool has_vectors() const {
    return are_vectors(is_16_bits(), sequence.features, hidden);
  }
  // Whether upstream runs it as a packed sequence, which takes none of its persistent kernels. One packed
  // step is as a padded one.
  bool is_step_by_step() const {
    return given_packed && sequence.steps > 1;
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

// 64 bits of all that a plan of such a call goes by, but for whether it is captured and for what its weights
// are; 0: it is not remembered (core/declined.h).
uint64_t fingerprint_of(const args::_cudnn_rnn& arguments);

// The problem, or the reason why it is none of ours; nullptr: it is. `saved`: the weights are what autograd
// saved of a forward, each wherever it lies, be it of one column.
const char* problem_of(const args::_cudnn_rnn& arguments, RnnProblem& problem, bool saved = false);

}  // namespace aten_ext::cuda
