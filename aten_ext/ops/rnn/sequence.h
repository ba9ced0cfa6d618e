// The sequence that a recurrent layer reads, as plain data. Standard library only.
#pragma once

#include <cstdint>
#include <numeric>

namespace aten_ext::cuda {

// How the elements of [steps, batch, features] lie.
enum class Layout : uint8_t {
  TimeMajor,   // contiguous
  BatchMajor,  // contiguous as [batch, steps, features]
  Rows,        // the features of a row side by side
  Strided,     // anything else
};

// Padded: every row has all steps. Packed: `batch_sizes` says how many rows have a step, and never grows.
struct Sequence {
  int64_t steps;
  int64_t batch;  // of the first step
  int64_t features;
  const int64_t* batch_sizes;  // [steps], the caller's; nullptr: padded
  Layout layout;

  bool is_packed() const {
    return batch_sizes != nullptr;
  }
  // Of all steps.
  int64_t rows() const {
    return is_packed() ? std::accumulate(batch_sizes, batch_sizes + steps, int64_t{0}) : steps * batch;
  }
};

}  // namespace aten_ext::cuda
