#include "ops/rnn/pieces.h"

#include <algorithm>
#include <utility>

#include "core/math.h"
#include "ops/rnn/problem.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// Tries, in this order: what part of all padding a piece may have. Where lengths fall evenly n pieces have
// that by n squared each.
constexpr int64_t kPadding[] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 256};
// And how many sixteenths of what is allowed are left to what exists of one piece at a time. Where lengths
// fall evenly half is about best; where many rows end at once there is little padding.
constexpr int64_t kAtOnce[] = {8, 6, 10, 13};
constexpr int64_t kParts = 16;
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

// What a piece may have: rows that are none of the sequence's, rows at all, and the fewest steps; and rows
// that are none of the sequence's however few steps it has.
struct Bounds {
  int64_t padding, rows, steps, padding_of_few;
};

// From the last step to the first, so that a piece begins where rows end.
std::vector<Piece> pieces_within(const Sequence& sequence, const Bounds& bounds) {
  std::vector<Piece> pieces;
  for (int64_t end = sequence.steps, begin = end; end > 0; end = begin) {
    int64_t own = 0;
    do {
      --begin;
      own += rows_of_step(sequence, begin);
      if (begin == 0) {
        continue;
      }
      const int64_t batch = rows_of_step(sequence, begin - 1);
      const int64_t rows = (end - begin + 1) * batch;
      const int64_t padding = rows - own - batch;
      const bool may_end = end - begin >= bounds.steps;
      if (padding > bounds.padding_of_few || (may_end && (padding > bounds.padding || rows > bounds.rows))) {
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

// Bytes of a row in what a forward that saves nothing has of one piece: its gates, in fp32, and the padded
// input and output.
int64_t bytes_of_forward(const RnnProblem& problem) {
  const int64_t element = problem.is_16_bits() ? 2 : 4;
  return problem.directions * (problem.gates() * problem.hidden * int64_t{sizeof(float)} +
                               (problem.input() + problem.hidden) * element);
}

// Bytes that padding costs: a row of it wherever rows are kept, and a row of the largest piece.
struct RowBytes {
  int64_t kept, at_once;
};

// Multiply-adds of a row of the widest layer.
int64_t products_of_row(const RnnProblem& problem) {
  return problem.directions * problem.gates() * problem.hidden * (problem.input() + problem.hidden);
}

// `slowness`: so many multiply-adds on tensor cores, by whole vectors, take as long as one of the problem's.
std::vector<Piece> fewest_within(const RnnProblem& problem, RowBytes of_row, int64_t most,
                                 const PieceLimits& limits, int64_t slowness) {
  const Sequence& sequence = problem.sequence;
  std::vector<Piece> fewest = chunks_of(sequence, sequence.steps);
  const int64_t rows = sequence.rows();
  const int64_t padding = rows_of(fewest) - rows;
  const int64_t worth_a_piece = limits.products / (products_of_row(problem) * slowness);
  const auto bytes = [&](const std::vector<Piece>& pieces) {
    return (rows_of(pieces) - rows) * of_row.kept + most_rows_of(pieces) * of_row.at_once;
  };
  int64_t least = bytes(fewest);
  if (least <= most && padding <= worth_a_piece) {
    return fewest;
  }
  if (of_row.kept == 0) {
    return pieces_within(sequence, {padding, most / of_row.at_once, limits.steps, worth_a_piece});
  }
  bool found = false;
  for (const int64_t part : kAtOnce) {
    for (const int64_t part_of_padding : kPadding) {
      std::vector<Piece> pieces = pieces_within(
          sequence,
          {padding / part_of_padding, most * part / kParts / of_row.at_once, limits.steps, worth_a_piece});
      if (found && pieces.size() >= fewest.size()) {
        break;  // more of them do not help
      }
      const int64_t taken = bytes(pieces);
      if (taken <= most || taken < least) {
        least = taken;
        fewest = std::move(pieces);
      }
      if (taken <= most) {
        found = true;
        break;
      }
    }
  }
  return fewest;
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

std::vector<Piece> pieces_of_forward_alone(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  if (!sequence.is_packed()) {
    return chunks_of(sequence, sequence.steps);
  }
  const int64_t units = problem.directions * problem.hidden * (problem.is_16_bits() ? 2 : 4);
  const int64_t of_upstream = sequence.rows() * (problem.gates() + 1) * units;
  const PieceLimits& limits = problem.of_forward;
  constexpr int64_t kOfFloats = 8;
  const bool is_slow = !problem.is_16_bits() && !problem.tf32_allowed;
  return fewest_within(problem, {0, bytes_of_forward(problem)}, limits.bytes + of_upstream, limits,
                       is_slow ? kOfFloats : 1);
}

std::vector<Piece> pieces_of(const RnnProblem& problem, bool saved) {
  const Sequence& sequence = problem.sequence;
  if (!sequence.is_packed()) {
    return chunks_of(sequence, sequence.steps);
  }
  const RowBytes of_row{saved ? saved_bytes(problem) : 0, bytes_at_once(problem, saved)};
  const int64_t of_rows = sequence.rows() * (of_row.kept + of_row.at_once);
  const PieceLimits& limits = problem.in_training;
  // Most of a row that does not exist is a GEMM's time, which grows where rows are no whole vectors.
  constexpr int64_t kOfRaggedRows = 4;
  const bool is_slow = problem.is_16_bits() && !problem.has_vectors();
  return fewest_within(problem, of_row, std::max(limits.bytes, of_rows / kSmallPart), limits,
                       is_slow ? kOfRaggedRows : 1);
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
