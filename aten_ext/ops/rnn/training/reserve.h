// What a forward of ours keeps for its backward, as the operator's fourth result. Standard library only.
//
// It is two-dimensional where cuDNN's is one-dimensional: that says whose it is, and survives copies. It has
// what the backward cannot find out again from the arguments and results that autograd saves, the outputs of
// all layers but the last; with dropout, what it kept; and, where the forward saves them, the coefficients of
// the gradients, which the backward would have to compute again. Its size says whether it has those. It
// follows from sizes and flags alone, because checkpointing compares it with that of a forward that is run
// again. There are no addresses in it.
#pragma once

#include <cstdint>

#include "core/math.h"
#include "ops/rnn/pieces.h"
#include "ops/rnn/problem.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {

class Reserve {
 public:
  static constexpr int64_t kDims = 2;  // {1, bytes()}

  Reserve(const RnnProblem& problem, bool coefficients)
      : layers_(problem.layers), directions_(problem.directions) {
    const int64_t element = problem.is_16_bits() ? 2 : 4;
    const Sequence& sequence = problem.sequence;
    layer_ = round_up(sequence.rows() * problem.directions * problem.hidden * element, kAlignment);
    coefficients_ = coefficients ? round_up(rows_of(pieces_of(problem, true)) * problem.hidden * element *
                                                coefficients_of(problem.cell),
                                            kAlignment)
                                 : 0;
    kept_ = problem.drops()
                ? round_up(ceil_div(sequence.rows() * problem.directions * problem.hidden, int64_t{8}),
                           kAlignment)
                : 0;
  }

  int64_t bytes() const {
    return kept_offset(layers_, 0);
  }
  // Of the output of a layer that is not the last: [steps, batch, directions * H], or the rows of a packed
  // sequence, contiguous.
  int64_t offset(int64_t layer) const {
    return layer * layer_;
  }
  // Of a layer's and direction's coefficients, of a packed sequence padded in pieces (pieces.h,
  // backward/saved.cuh).
  int64_t coefficients_offset(int64_t layer, int64_t direction) const {
    return offset(layers_ - 1) + (layer * directions_ + direction) * coefficients_;
  }
  // Of the bits of what a direction of a layer, not the first, reads of the output before it (dropout.h).
  int64_t kept_offset(int64_t layer, int64_t direction) const {
    return coefficients_offset(layers_, 0) + ((layer - 1) * directions_ + direction) * kept_;
  }

 private:
  static constexpr int64_t kAlignment = 256;

  int64_t layers_, directions_;
  int64_t layer_, coefficients_, kept_;
};

}  // namespace aten_ext::cuda
