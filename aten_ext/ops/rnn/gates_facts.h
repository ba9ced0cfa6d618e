// Where upstream's kernels for the gates of a step take no longer than ours, as data for the rules of
// _thnn_fused_lstm_cell and of both cells' backwards: an H200, torch 2.11; the figures are in
// docs/kernels/rnn.md. Standard library only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/dtype.h"
#include "ops/rnn/layers_in_ranges.h"

namespace aten_ext::cuda {

constexpr int kLstmGates = 1, kLstmGatesBackward = 2, kGruGatesBackward = 4;
constexpr int kBackwards = kLstmGatesBackward | kGruGatesBackward;
constexpr int kFp64 = 8;  // beside kFp32, kFp16 and kBf16
constexpr int kBiases = 1, kNoBiases = 2, kAnyBiases = 3;

struct GatesCall {
  int op;
  Dtype dtype;
  bool biases;
  int64_t batch, hidden;
};

struct GatesInRanges {
  int operators, dtypes, biases;
  Range rows{};
  Range units{};  // of all rows
  bool odd{};     // hidden sizes alone, whose units a thread makes one by one

  bool has(const GatesCall& call) const {
    const int dtype = call.dtype == Dtype::Double  ? kFp64
                      : call.dtype == Dtype::Float ? kFp32
                      : call.dtype == Dtype::Half  ? kFp16
                                                   : kBf16;
    return (operators & call.op) != 0 && (dtypes & dtype) != 0 &&
           (biases & (call.biases ? kBiases : kNoBiases)) != 0 && rows.has(static_cast<double>(call.batch)) &&
           units.has(static_cast<double>(call.batch * call.hidden)) && (!odd || call.hidden % 2 != 0);
  }
};

// Few units are a launch and the latency of one thread, which are shorter here. Of more, both sides move the
// same bytes; in 16 bits ours move two at once.
constexpr double kMoreUnits = 4097;
constexpr double kUnitsBeyondCaches = 4e6;
// A block adds up all of up to 64 rows: of one row upstream takes 1.33 times as long, of 64 rows 0.97.
constexpr double kMoreRows = 9;
constexpr GatesInRanges kAsFastUpstream[] = {
    // operators, dtypes, biases, rows, units, odd
    // 512 units 1.31, 32 thousand 0.96, 4 million 1.01.
    {kLstmGates, kFp32 | kFp64, kAnyBiases, kAny, at_least(kMoreUnits)},
    // Upstream reads the gradients again for the biases, from memory where no cache holds them: 4 million
    // 1.33.
    {kLstmGatesBackward, kFp32, kBiases, at_least(kMoreRows), at_most(kUnitsBeyondCaches)},
    {kLstmGatesBackward, kFp32, kBiases, kAny, {kMoreUnits, kUnitsBeyondCaches}},
    // Without biases: of an LSTM 94 and 160 units 0.93, 1,600 0.99, 2,500 1.02, 32 thousand 1.00, of a GRU
    // 1.07.
    {kLstmGatesBackward, kFp32, kNoBiases},
    {kGruGatesBackward, kFp32, kNoBiases, kAny, at_least(32769)},
    // In 16 bits, of a GRU 179 thousand units 1.06 (an H100, as what follows), 200 thousand 0.90 (an H200),
    // 410 thousand 0.92, 2 million 0.80, and up to 1.16 only where rows are whole lines of the cache; of an
    // LSTM 410 thousand 1.06, 1 million 0.97, 1.7 million 0.95 and 1.02.
    {kGruGatesBackward, kFp16 | kBf16, kNoBiases, kAny, at_least(1.8e5)},
    {kLstmGatesBackward, kFp16 | kBf16, kNoBiases, kAny, {5e5, 2e6}},
    // With biases 1,320 rows of 1,349 units 0.88, 3,337 of 815 0.97; of even sizes 1.22 and more.
    {kLstmGatesBackward, kFp16 | kBf16, kBiases, kAny, at_least(1.5e6), /*odd=*/true},
    // fp64 was not measured.
    {kBackwards, kFp64, kAnyBiases, at_least(kMoreRows)},
    {kBackwards, kFp64, kAnyBiases, kAny, at_least(kMoreUnits)},
};

inline const char* decline_as_fast(const GatesCall& call) {
  const bool as_fast = std::any_of(std::begin(kAsFastUpstream), std::end(kAsFastUpstream),
                                   [&](const GatesInRanges& calls) { return calls.has(call); });
  if (as_fast) {
    return "gates that upstream computes as fast";
  }
  return nullptr;
}

}  // namespace aten_ext::cuda
