// Layers whose sizes are in all of some ranges, the form of the tables of what was seen of upstream. Standard
// library only.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>

#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

struct Range {
  double least = 0.0;
  double most = std::numeric_limits<double>::infinity();

  constexpr bool has(double value) const {
    return least <= value && value <= most;
  }
};

constexpr Range at_least(double least) {
  return {least};
}
constexpr Range at_most(double most) {
  return {0.0, most};
}
constexpr Range kAny{};
constexpr Range kOne{1.0, 1.0};
constexpr Range kTwo{2.0, 2.0};
constexpr Range kSeveral{2.0};

constexpr int kGru = 1, kLstm = 2, kRnn = 4, kAnyCell = 7;
constexpr int kFp32 = 1, kFp16 = 2, kBf16 = 4, k16Bits = 6, kAnyDtype = 7;

constexpr int bit_of(Cell cell) {
  return cell == Cell::Gru ? kGru : cell == Cell::Lstm ? kLstm : kRnn;
}
constexpr int bit_of(Dtype dtype) {
  return dtype == Dtype::Float ? kFp32 : dtype == Dtype::Half ? kFp16 : kBf16;
}

struct LayersInRanges {
  int cells, dtypes;
  Range directions{}, layers{}, steps{}, hidden{}, batch{}, rows{};
  Range weights{};    // thousands, of a direction of the widest layer
  Range products{};   // millions of multiply-adds of one of its steps
  Range step_rows{};  // of both directions
  Range padding{};    // steps times rows of a packed sequence, over the steps that its rows have
  Range units{};      // of a step: its rows times H, of both directions
  bool only_without_vectors = false;  // features or H are no multiple of 16 bytes

  // The lengths are added up only where a range asks.
  bool has_padding(const Sequence& sequence) const {
    return padding.least <= 1.0 || padding.has(static_cast<double>(sequence.steps * sequence.batch) /
                                               static_cast<double>(sequence.rows()));
  }

  bool has(const RnnProblem& problem) const {
    const Sequence& sequence = problem.sequence;
    const double matrices = static_cast<double>(problem.gates() * problem.hidden) *
                            static_cast<double>(problem.input() + problem.hidden);
    const auto steps_of_row = static_cast<double>(sequence.steps);
    const auto rows_of_step = static_cast<double>(sequence.batch);
    return (cells & bit_of(problem.cell)) != 0 && (dtypes & bit_of(problem.dtype)) != 0 &&
           directions.has(problem.directions) && layers.has(problem.layers) && steps.has(steps_of_row) &&
           hidden.has(static_cast<double>(problem.hidden)) && batch.has(rows_of_step) &&
           rows.has(steps_of_row * rows_of_step) && weights.has(matrices / 1e3) &&
           products.has(rows_of_step * matrices / 1e6) && step_rows.has(rows_of_step * problem.directions) &&
           units.has(rows_of_step * static_cast<double>(problem.hidden * problem.directions)) &&
           !(only_without_vectors && problem.has_vectors()) && has_padding(sequence);
  }
};

// The layers of so many units.
constexpr LayersInRanges of_units(Range units, LayersInRanges layers) {
  layers.units = units;
  return layers;
}

// Those whose rows are no whole vectors.
constexpr LayersInRanges without_vectors(LayersInRanges layers) {
  layers.only_without_vectors = true;
  return layers;
}

template <int kCount>
bool is_in(const LayersInRanges (&table)[kCount], const RnnProblem& problem) {
  return std::any_of(std::begin(table), std::end(table),
                     [&](const LayersInRanges& layers) { return layers.has(problem); });
}

}  // namespace aten_ext::cuda
