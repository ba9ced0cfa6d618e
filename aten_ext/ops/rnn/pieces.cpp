#include "ops/rnn/pieces.h"

#include <algorithm>
#include <utility>

#include "core/math.h"
#include "ops/rnn/cudnn_facts.h"
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
// Steps at which a piece may begin, at most, where the least time is looked for: a call waits for that.
constexpr int64_t kMostBegins = 32;

// So many multiply-adds on tensor cores, by whole vectors, take as long as one of the product with W_ih, and
// one of those with W_hh, which in fp32 no launch shares with so many rows.
struct Slowness {
  int64_t input, hidden;
};
constexpr Slowness kOnTensorCores{1, 1};
constexpr Slowness kOfFloats{8, 24};
constexpr Slowness kOfRaggedRows{4, 1};  // of 16 bits, that are no whole vectors
// In training most of what a row costs is in GEMMs, and in fp32 there is a second recurrence.
constexpr Slowness kOfFloatsInTraining{4, 24};
constexpr Slowness kOfRaggedRowsInTraining{4, 4};

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

// Steps at which rows end, the first of all too: a piece that began elsewhere would have rows for nothing. Of
// many only some.
std::vector<int64_t> begins_of(const Sequence& sequence) {
  int64_t ends = 1;
  for (int64_t step = 1; step < sequence.steps; ++step) {
    ends += rows_of_step(sequence, step) < rows_of_step(sequence, step - 1) ? 1 : 0;
  }
  const int64_t apart = ceil_div(ends, kMostBegins);
  std::vector<int64_t> begins;
  int64_t end = 0;
  for (int64_t step = 0; step < sequence.steps; ++step) {
    if (step == 0 || rows_of_step(sequence, step) < rows_of_step(sequence, step - 1)) {
      if (end++ % apart == 0) {
        begins.push_back(step);
      }
    }
  }
  return begins;
}

// Those of which rows, and `of_piece` more for each piece, are the fewest.
std::vector<Piece> pieces_of_least_time(const Sequence& sequence, int64_t of_piece) {
  const std::vector<int64_t> begins = begins_of(sequence);
  // By the first piece's begin: what it and all after it take, and where the next begins.
  const size_t count = begins.size();
  std::vector<int64_t> least(count + 1, 0);
  std::vector<size_t> next(count);
  for (size_t i = count; i-- > 0;) {
    const int64_t batch = rows_of_step(sequence, begins[i]);
    for (size_t end = count; end > i; --end) {
      const int64_t steps = (end == count ? sequence.steps : begins[end]) - begins[i];
      const int64_t rows = steps * batch + of_piece + least[end];
      if (end == count || rows < least[i]) {
        least[i] = rows;
        next[i] = end;
      }
    }
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < count; i = next[i]) {
    const int64_t steps = (next[i] == count ? sequence.steps : begins[next[i]]) - begins[i];
    pieces.push_back(
        {begins[i], steps, rows_of_step(sequence, begins[i]), is_full(sequence, begins[i], steps), {}});
  }
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

// Multiply-adds of a row of the widest layer, as so many on tensor cores.
int64_t products_of_row(const RnnProblem& problem, const Slowness& slowness) {
  return problem.directions * problem.gates() * problem.hidden *
         (problem.input() * slowness.input + problem.hidden * slowness.hidden);
}

// Whether the recurrence multiplies in fp32.
bool is_in_floats(const RnnProblem& problem, bool tf32_allowed) {
  return !problem.is_16_bits() && !(tf32_allowed && problem.hidden % kTf32Vector == 0 &&
                                    has_tf32_state(problem.cell, problem.sequence.batch, problem.hidden));
}

bool is_ragged(const RnnProblem& problem) {
  return problem.is_16_bits() && !problem.has_vectors();
}

std::vector<Piece> fewest_within(const RnnProblem& problem, RowBytes of_row, int64_t most,
                                 const PieceLimits& limits, const Slowness& slowness) {
  const Sequence& sequence = problem.sequence;
  std::vector<Piece> fewest = chunks_of(sequence, sequence.steps);
  const int64_t rows = sequence.rows();
  const int64_t padding = rows_of(fewest) - rows;
  const int64_t worth_a_piece = limits.products / products_of_row(problem, slowness);
  const auto bytes = [&](const std::vector<Piece>& pieces) {
    return (rows_of(pieces) - rows) * of_row.kept + most_rows_of(pieces) * of_row.at_once;
  };
  int64_t least = bytes(fewest);
  if (least <= most && padding <= worth_a_piece) {
    return fewest;
  }
  if (std::vector<Piece> pieces = pieces_of_least_time(sequence, worth_a_piece); bytes(pieces) <= most) {
    return pieces;
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
  return fewest_within(problem, {0, bytes_of_forward(problem)}, limits.bytes + of_upstream, limits,
                       is_in_floats(problem, problem.tf32_allowed) ? kOfFloats
                       : is_ragged(problem)                        ? kOfRaggedRows
                                                                   : kOnTensorCores);
}

std::vector<Piece> pieces_of(const RnnProblem& problem, bool saved) {
  const Sequence& sequence = problem.sequence;
  if (!sequence.is_packed()) {
    return chunks_of(sequence, sequence.steps);
  }
  const RowBytes of_row{saved ? saved_bytes(problem) : 0, bytes_at_once(problem, saved)};
  const int64_t of_rows = sequence.rows() * (of_row.kept + of_row.at_once);
  const PieceLimits& limits = problem.in_training;
  // A backward reads what the forward saved by pieces, and may find another setting of TF32: both go by the
  // default.
  constexpr bool kTf32Allowed = true;
  return fewest_within(problem, of_row, std::max(limits.bytes, of_rows / kSmallPart), limits,
                       is_in_floats(problem, kTf32Allowed) ? kOfFloatsInTraining
                       : is_ragged(problem)                ? kOfRaggedRowsInTraining
                                                           : kOnTensorCores);
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

bool are_projected_together(const RnnProblem& problem, const std::vector<Piece>& pieces, bool saves) {
  if (!problem.sequence.is_packed() || pieces.size() < 2) {
    return false;
  }
  const PieceLimits& limits = problem.train ? problem.in_training : problem.of_forward;
  const int64_t rows = rows_of(pieces);
  const int64_t kept = saves ? (rows - problem.sequence.rows()) * saved_bytes(problem) : 0;
  return kept + rows * bytes_of_forward(problem) <= limits.bytes;
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
