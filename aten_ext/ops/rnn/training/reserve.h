// What a forward of ours keeps for its backward, as the operator's fourth result. Standard library only.
//
// It is two-dimensional where cuDNN's is one-dimensional: that says whose it is, and survives copies. It has
// what the backward cannot find out again from the arguments and results that autograd saves: the outputs of
// all layers but the last. Its size follows from sizes and flags alone, because checkpointing compares it
// with that of a forward that is run again. There are no addresses in it.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

class Reserve {
 public:
  static constexpr int64_t kDims = 2;  // {1, bytes()}

  explicit Reserve(const RnnProblem& problem)
      : layer_(round_up(
            problem.sequence.rows() * problem.directions * problem.hidden * (problem.is_16_bits() ? 2 : 4),
            int64_t{256})),
        layers_(problem.layers) {}

  int64_t bytes() const {
    return offset(layers_ - 1);
  }
  // Of the output of a layer that is not the last: [steps, batch, directions * H], or the rows of a packed
  // sequence, contiguous.
  int64_t offset(int64_t layer) const {
    return layer * layer_;
  }

 private:
  int64_t layer_, layers_;
};

}  // namespace aten_ext::cuda
