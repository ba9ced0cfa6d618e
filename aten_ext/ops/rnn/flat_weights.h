// Where cuDNN has the weights of a layer stack in its one buffer: of every layer and then direction w_ih and
// w_hh, and behind all of these, in the same order, b_ih and b_hh. There are biases in it even for layers
// without (PyTorch asks cuDNN for two of each gate, and leaves zeros). Standard library only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

class FlatWeights {
 public:
  explicit FlatWeights(const RnnProblem& problem)
      : gates_(problem.gates() * problem.hidden),
        hidden_(problem.hidden),
        features_(problem.sequence.features),
        directions_(problem.directions),
        count_(problem.layers * problem.directions) {}

  // The first element of one of a layer and direction's tensors (0 w_ih, 1 w_hh, 2 b_ih, 3 b_hh); `index` is
  // layer * directions + direction.
  int64_t offset(int64_t index, int64_t kind) const {
    if (kind >= 2) {
      return matrices(count_) + (2 * index + kind - 2) * gates_;
    }
    return matrices(index) + (kind == 1 ? gates_ * columns(index) : 0);
  }
  int64_t matrices() const {
    return matrices(count_);
  }
  int64_t elements() const {
    return matrices(count_) + 2 * count_ * gates_;
  }

 private:
  // Of w_ih.
  int64_t columns(int64_t index) const {
    return index < directions_ ? features_ : directions_ * hidden_;
  }
  // Elements of all matrices before those of `index`.
  int64_t matrices(int64_t index) const {
    const int64_t first = std::min(index, directions_);
    return gates_ * (first * features_ + (index - first) * directions_ * hidden_ + index * hidden_);
  }

  int64_t gates_, hidden_, features_, directions_, count_;
};

}  // namespace aten_ext::cuda
