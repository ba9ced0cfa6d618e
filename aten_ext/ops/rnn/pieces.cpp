#include "ops/rnn/pieces.h"

#include <algorithm>

#include "core/math.h"
#include "ops/rnn/problem.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// Tries, in this order: so many pieces where lengths fall evenly. The padding of each is then that of all by
// the square of it.
constexpr int64_t kPieces[] = {1, 2, 3, 4, 6, 8, 12, 16};
// The part of what the rows themselves take that is too little to be worth a piece more.
constexpr int64_t kSmallPart = 16;

bool is_full(const Sequence& sequence, int64_t first, int64_t steps) {
  return rows_of_step(sequence, first + steps - 1) == rows_of_step(sequence, first);
}

void place(std::vector<Piece>& pieces) {
  int64_t row = 0;
  for (Piece& piece : pieces) {
    piece.row[0] = piece.row[1] = row;
    row += piece.rows();
  }
}

// What a piece may have: rows that are none of the sequence's, rows at all, and the fewest steps.
struct Bounds {
  int64_t padding, rows, steps;
};

// From the last step to the first, so that a piece begins where rows end.
std::vector<Piece> pieces_within(const Sequence& sequence, const Bounds& bounds) {
  std::vector<Piece> pieces;
  for (int64_t end = sequence.steps, begin = end; end > 0; end = begin) {
    int64_t own = 0;
    do {
      --begin;
      own += rows_of_step(sequence, begin);
      if (begin == 0 || end - begin < bounds.steps) {
        continue;
      }
      const int64_t batch = rows_of_step(sequence, begin - 1);
      const int64_t rows = (end - begin + 1) * batch;
      if (rows - own - batch > bounds.padding || rows > bounds.rows) {
        break;
      }
    } while (begin > 0);
    const int64_t steps = end - begin;
    pieces.push_back({begin, steps, rows_of_step(sequence, begin), is_full(sequence, begin, steps), {}});
  }
  std::reverse(pieces.begin(), pieces.end());
  place(pieces);
  return pieces;
}

// Bytes of a row in all that a forward saves.
int64_t saved_bytes(const RnnProblem& problem) {
  const int64_t units = problem.layers * problem.directions * problem.hidden;
  return units * coefficients_of(problem.cell) * (problem.is_16_bits() ? 2 : 4);
}

// Bytes of a row in what a backward has of one piece at a time: gradients of gates and of the output, and to
// compute gates again the input, the output and the states before each step.
int64_t bytes_at_once(const RnnProblem& problem, bool saved) {
  const int64_t gates = problem.gates() * (problem.cell == Cell::Gru ? 2 : 1);
  const int64_t elements = (gates + 1) * problem.hidden + (saved ? 0 : 2 * problem.hidden + problem.input());
  return problem.directions * elements * (problem.is_16_bits() ? 2 : 4);
}

}  // namespace

std::vector<Piece> chunks_of(const Sequence& sequence, int64_t steps) {
  std::vector<Piece> pieces;
  for (int64_t first = 0; first < sequence.steps; first += steps) {
    const int64_t count = std::min(steps, sequence.steps - first);
    pieces.push_back({first, count, rows_of_step(sequence, first), is_full(sequence, first, count), {}});
  }
  if (sequence.is_packed()) {
    place(pieces);
    return pieces;
  }
  for (Piece& piece : pieces) {
    for (int d = 0; d < 2; ++d) {
      piece.row[d] = time_of(sequence, d, piece.first, piece.steps) * sequence.batch;
    }
  }
  return pieces;
}

std::vector<Piece> pieces_of(const RnnProblem& problem, bool saved) {
  const Sequence& sequence = problem.sequence;
  std::vector<Piece> pieces = chunks_of(sequence, sequence.steps);
  if (!sequence.is_packed()) {
    return pieces;
  }
  const int64_t rows = sequence.rows();
  const int64_t padding = pieces[0].rows() - rows;
  const int64_t saved_of_row = saved ? saved_bytes(problem) : 0;
  const int64_t of_row = bytes_at_once(problem, saved);
  const int64_t most = std::max(problem.piece_limits.bytes, rows * (saved_of_row + of_row) / kSmallPart);
  if (padding * saved_of_row + pieces[0].rows() * of_row <= most) {
    return pieces;
  }
  // Half of it for what is saved, half for what exists of a piece.
  for (const int64_t count : kPieces) {
    pieces =
        pieces_within(sequence, {padding / (count * count), most / 2 / of_row, problem.piece_limits.steps});
    if ((rows_of(pieces) - rows) * saved_of_row <= most / 2) {
      break;
    }
  }
  return pieces;
}

std::vector<Piece> cut(const std::vector<Piece>& pieces, int64_t steps) {
  std::vector<Piece> parts;
  for (const Piece& piece : pieces) {
    for (int64_t done = 0; done < piece.steps; done += steps) {
      const int64_t count = std::min(steps, piece.steps - done);
      const int64_t left = piece.steps - done - count;
      parts.push_back({piece.first + done,
                       count,
                       piece.batch,
                       piece.full,
                       {piece.row[0] + done * piece.batch, piece.row[1] + left * piece.batch}});
    }
  }
  return parts;
}

int64_t rows_of(const std::vector<Piece>& pieces) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) {
    rows += piece.rows();
  }
  return rows;
}

int64_t most_rows_of(const std::vector<Piece>& pieces) {
  int64_t rows = 0;
  for (const Piece& piece : pieces) {
    rows = std::max(rows, piece.rows());
  }
  return rows;
}

}  // namespace aten_ext::cuda
