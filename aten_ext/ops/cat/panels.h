// When transposes are made by panels, whole rows of the result (panels.cu), and how large those are. Timings:
// docs/kernels/cat.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "core/math.h"
#include "ops/cat/gpu.h"

namespace aten_ext::cuda {

inline constexpr int kPanelDims = 4;     // after merging
inline constexpr int kPanelInputs = 32;  // of one launch
inline constexpr int kPanelVector = 16;  // bytes

// ---- policy ------------------------------------------------------------------------------------------

// Inputs of up to so many columns, in results of so many bytes for each multiprocessor, whose elements have
// 1, 2, 4 or 8 bytes: a panel crosses shared memory, and smaller results are made sooner by elements one by
// one. Sooner than others are those of which a row holds all inputs, where elements one by one are short
// pieces.
struct PanelsFrom {
  bool joined;
  int64_t columns;
  int64_t bytes[4];
};
inline constexpr int64_t kNever = int64_t{1} << 40;
inline constexpr PanelsFrom kPanelsFrom[] = {{true, 4, {12 << 10, 8 << 10, 18 << 10, 90 << 10}},
                                             {true, 8, {14 << 10, 15 << 10, 36 << 10, 90 << 10}},
                                             {false, 24, {14 << 10, 20 << 10, 108 << 10, kNever}},
                                             {false, 40, {20 << 10, 30 << 10, 108 << 10, kNever}},
                                             {false, 64, {80 << 10, 52 << 10, kNever, kNever}}};
// And rows of up to so many columns: of more, a panel holds too short a part of each.
inline constexpr int64_t kColumnsOfRow[] = {128, 96, 64, 40};

// Shared memory of a panel, of which a multiprocessor of sm_90 has room for 8. Each column is a run of an
// input, of so many bytes, and one vector more, since it may begin within one.
inline constexpr int kPanelBytes = 20480;
inline constexpr int64_t kShortestColumn = 128;
// A panel is of one run of each column: with fewer bytes in all of them, it takes longer to begin than to
// make.
inline constexpr int64_t kLeastOfPanel = 4096;
inline constexpr int64_t kLongestColumn = 4096;
inline constexpr int kMostColumns = 128;
// Columns shrink rather than leave multiprocessors with fewer panels.
inline constexpr int64_t kPanelsPerSM = 2;

// ---- layout ------------------------------------------------------------------------------------------

// Where a column begins in shared memory. Threads of a warp read columns at equal distances, often a power of
// two: with a vector more for each, and another for every 8, those are in different banks.
constexpr uint32_t place_of_column(uint32_t number, uint32_t bytes) {
  return number * (bytes + kPanelVector) + number / 8 * kPanelVector;
}

static_assert(*std::max_element(std::begin(kColumnsOfRow), std::end(kColumnsOfRow)) <= kMostColumns);
static_assert(place_of_column(kMostColumns, kShortestColumn) <= kPanelBytes);

// ---- rule --------------------------------------------------------------------------------------------

// The first figures are the least.
constexpr bool is_least_first() {
  for (const PanelsFrom& from : kPanelsFrom) {
    for (int element = 0; element < 4; ++element) {
      if (from.bytes[element] < kPanelsFrom[0].bytes[element]) {
        return false;
      }
    }
  }
  return true;
}
static_assert(is_least_first());

// Whether no call of so many bytes is made by panels.
inline bool is_below_panels(int64_t bytes, int64_t element_size, const CatGpu& gpu) {
  const int element = index_of_size(element_size);
  return !gpu.has_async_copies || element < 0 || element > 3 ||
         bytes < kPanelsFrom[0].bytes[element] * gpu.multiprocessors;
}

// Rows of `row` columns, either of one input or, `joined`, of all `inputs`. Of an input `run` bytes are
// neighbours.
inline bool is_by_panels(int64_t bytes, int64_t row, int64_t run, bool joined, int64_t inputs,
                         int64_t element_size, const CatGpu& gpu) {
  const int element = index_of_size(element_size);
  return run >= kShortestColumn && row * run >= kLeastOfPanel && row <= kColumnsOfRow[element] &&
         (!joined || inputs <= kPanelInputs) &&
         std::any_of(std::begin(kPanelsFrom), std::end(kPanelsFrom), [&](const PanelsFrom& from) {
           return row <= from.columns * (joined ? inputs : 1) && (joined || !from.joined) &&
                  bytes >= from.bytes[element] * gpu.multiprocessors;
         });
}

// Bytes of a column, a power of two, in panels of `row` of them from a result of `bytes`. Of an input `run`
// bytes are neighbours.
inline int64_t bytes_of_column(int64_t bytes, int64_t row, int64_t run, const CatGpu& gpu) {
  int64_t column = kLongestColumn;
  while (column > kShortestColumn &&
         (place_of_column(static_cast<uint32_t>(row), static_cast<uint32_t>(column)) > kPanelBytes ||
          column / 2 >= run || bytes < kPanelsPerSM * gpu.multiprocessors * row * column)) {
    column /= 2;
  }
  return column;
}

}  // namespace aten_ext::cuda
