// The steps of a sequence in pieces, each computed by launches of its own. Standard library only.
//
// A packed sequence is padded piece by piece. A piece has the rows that have its first step, so that a long
// row does not make the others as long as itself.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/rnn/sequence.h"

namespace aten_ext::cuda {

struct RnnProblem;

// Some steps of each direction, in the order in which it computes them, and the rows of the batch that have
// the first of them: those before `batch`.
struct Piece {
  int64_t first;
  int64_t steps;
  int64_t batch;
  bool full;       // no row ends before the piece does
  int64_t row[2];  // by direction: rows before it where all pieces lie one behind the other, each in order of
                   // time

  int64_t rows() const {
    return steps * batch;
  }
};

// How many rows have a direction's step.
inline int64_t rows_of_step(const Sequence& sequence, int64_t step) {
  return sequence.is_packed() ? sequence.batch_sizes[step] : sequence.batch;
}

// The time of the first of so many steps that a direction computes from its step `first` on.
inline int64_t time_of(const Sequence& sequence, int direction, int64_t first, int64_t steps) {
  return direction == 0 ? first : sequence.steps - first - steps;
}

// Pieces of so many steps, the last of fewer.
std::vector<Piece> chunks_of(const Sequence& sequence, int64_t steps);

// As few as leave padding, and what exists of one piece at a time, within the problem's limits. A padded
// sequence is one. Of a forward that saves nothing; and in training, `saved`: whether the forward saves
// coefficients.
std::vector<Piece> pieces_of_forward_alone(const RnnProblem& problem);
std::vector<Piece> pieces_of(const RnnProblem& problem, bool saved);

// Each in parts of so many steps, the last of fewer.
std::vector<Piece> cut(const std::vector<Piece>& pieces, int64_t steps);

// Whether the input of several pieces of a packed sequence is one product: where that takes as little memory
// as one piece may, beside what a forward that `saves` keeps. A small product takes as long as a large one.
bool are_projected_together(const RnnProblem& problem, const std::vector<Piece>& pieces, bool saves);

// Rows of all pieces, and of the largest.
int64_t rows_of(const std::vector<Piece>& pieces);
int64_t most_rows_of(const std::vector<Piece>& pieces);

}  // namespace aten_ext::cuda
