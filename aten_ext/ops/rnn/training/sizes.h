// Numbers of a cell's coefficients, chosen when a program runs. Standard library only.
#pragma once

#include "ops/rnn/backward/coefficients.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

inline int coefficients_of(Cell cell) {
  switch (cell) {
    case Cell::Gru:
      return GruBackwardSizes::kCoefficients;
    case Cell::Lstm:
      return LstmBackwardSizes::kCoefficients;
    default:
      return RnnBackwardSizes::kCoefficients;
  }
}

// fp32 values a unit and step that the products of the gates are found out again from: of a GRU the parts of
// input and hidden state apart, because the reset gate multiplies one of them; of an RNN none, whose state
// says it all.
inline int recomputed_of(Cell cell) {
  return cell == Cell::Gru ? 2 * GruSizes::kGates : cell == Cell::Lstm ? LstmSizes::kGates : 0;
}

}  // namespace aten_ext::cuda
