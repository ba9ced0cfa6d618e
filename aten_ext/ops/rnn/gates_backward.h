// How the backward of a step's gates is laid out over a GPU, and where the gradients of its biases go.
// Standard library and the CUDA runtime's types only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/math.h"

namespace aten_ext::cuda {

// A gradient [batch, hidden] of any strides, which are in elements: a sum's is one number, and those of
// stacked outputs lie apart.
struct Incoming {
  const void* data;  // or nullptr: zeros
  int64_t row, unit;
};

// Sums over the rows of what was stored of four columns a unit, to [gates * hidden].
struct BiasGradients {
  void* input;   // nullptr: none are wanted
  void* hidden;  // nullptr if the same as `input`
  void* parts;   // [parts, 4, hidden] in the dtype of arithmetic, nullptr where there is one part
};

// A block has 32 lanes, of `units` hidden units each, and `warps` rows at a time; `rows` in all. So has a
// second launch, which adds the sums of `parts` blocks.
struct GatesTile {
  int units;  // of one row, that a thread has
  int warps;  // 1, 2, 4, ... most_warps()
  int64_t rows;
  int64_t parts;
};

constexpr int kSums = 4;  // columns of a unit that biases' gradients are the sums of
constexpr int kLanes = 32;
constexpr int kWarpsOfMany = 8;  // of a block that is one of many
// Up to so many rows the sums over them are one block's, in one launch.
constexpr int64_t kRowsOfOnePart = 64;
constexpr int64_t kMostParts = 128;

// Of a block that sums; `element`: of arithmetic. 32 would leave fp64 too few registers.
constexpr int most_warps(size_t element) {
  return element == sizeof(double) ? 16 : 32;
}

inline int64_t unit_tiles(int64_t hidden, int units) {
  return ceil_div(hidden, int64_t{kLanes} * units);
}

// Shared memory of a block that sums, in elements of arithmetic's size. Less than any GPU gives unasked.
inline size_t bytes_of_sums(const GatesTile& tile, size_t element) {
  return element * kSums * kLanes * static_cast<size_t>(tile.units * tile.warps);
}

// `blocks`: of kWarpsOfMany warps, that the GPU has at once.
inline GatesTile gates_tile(int64_t batch, int64_t hidden, int units, bool sums, size_t element,
                            int64_t blocks) {
  const auto warps_for = [](int64_t rows, int most) {
    int warps = 1;
    while (warps < rows && warps < most) {
      warps *= 2;
    }
    return warps;
  };
  if (!sums) {
    const int warps = warps_for(batch, kWarpsOfMany);
    return {units, warps, warps, ceil_div(batch, int64_t{warps})};
  }
  if (batch <= kRowsOfOnePart) {
    return {units, warps_for(batch, most_warps(element)), batch, 1};
  }
  const int64_t wanted = std::clamp<int64_t>(blocks / unit_tiles(hidden, units), 2, kMostParts);
  const int64_t rows = round_up(ceil_div(batch, wanted), int64_t{kWarpsOfMany});
  return {units, kWarpsOfMany, rows, ceil_div(batch, rows)};
}

}  // namespace aten_ext::cuda
