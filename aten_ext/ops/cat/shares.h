// Which kernel of cat takes which inputs of a call that are not all contiguous.
//
// Upstream makes such a call in one launch, or in one for each input, and a launch more costs as much as
// megabytes of memory traffic. So one kernel, that of gather.cu, takes all inputs unless another one wins
// back its launch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "ops/cat/conversions.h"
#include "ops/cat/geometry.h"
#include "ops/cat/gpu.h"
#include "ops/cat/panels.h"

namespace aten_ext {

enum class CatWay : uint8_t { Runs, Gather, Tiles, Panels };

// An input in the order of its tensor, not merged.
struct CatLaidOut {
  c10::IntArrayRef strides;
  int64_t size_at_dim;
  int64_t row_stride;  // of a run
  bool is_run;
};

struct CatShares {
  std::vector<CatWay> ways;  // of each input
  // Those by tiles or panels, merged all alike; nothing where there are none.
  std::optional<CatGeometry> merged;
  std::vector<CatStridedInput> tiled;
  int64_t column_bytes = 0;  // of panels
};

// Inputs in one geometry, as few dimensions as all of them allow.
struct CatMerged {
  CatGeometry geometry;
  std::vector<CatStridedInput> inputs;
};

// All inputs, or those that are no runs.
inline CatMerged merge(const CatGeometry& geometry, const std::vector<CatLaidOut>& inputs, bool with_runs) {
  CatMerged merged{geometry, {}};
  merged.inputs.reserve(inputs.size());
  std::vector<CatStridedInput*> all;
  all.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (with_runs || !inputs[i].is_run) {
      all.push_back(&merged.inputs.emplace_back(
          CatStridedInput{geometry.strides_of(inputs[i].strides), inputs[i].size_at_dim, i}));
    }
  }
  merge_dimensions(merged.geometry, all);
  return merged;
}

// Tiles are for large results: of a smaller one the L2 keeps what has been read until the rest of it is, and
// two trips through shared memory, or another launch, take longer. And they are for inputs of whose tiles at
// least so much is full: of 2 bytes an element, 4 or more, or where elements are converted.
constexpr double kFullTilesOfPairs = 0.65;
constexpr double kFullTilesOfWords = 0.4;
constexpr double kFullTilesOfLarger = 0.75;
constexpr double kFullTilesOfConverted = 0.65;
// Segments of fewer elements and bytes than this that are no multiples of a sector are gathered: the inputs
// take turns there, so that sectors with elements of two are written once. Single bytes that are converted,
// without other inputs beside them, are faster in tiles all the same.
constexpr int64_t kShortSegment = 192;
constexpr int64_t kShortSegmentBytes = 768;
constexpr int64_t kSectorBytes = 32;
constexpr int64_t kVectorBytes = 16;
// The kernels of runs go through the whole result, and pass by what others make: so runs are gathered too
// where they are less than so much of it, 3 / 4.
constexpr int64_t kRunsOfAll[2] = {3, 4};

// What of a call and its GPU decides.
struct CatSharing {
  bool converts;
  int64_t element_size;
  const cuda::CatGpu& gpu;
};

inline bool are_full(double elements, double of_tiles, const CatSharing& by) {
  return elements >= of_tiles * (by.converts            ? kFullTilesOfConverted
                                 : by.element_size <= 2 ? kFullTilesOfPairs
                                 : by.element_size <= 4 ? kFullTilesOfWords
                                                        : kFullTilesOfLarger);
}

// Finds the inputs of a large result that tiles could take, and makes it so where that wins back their
// launch.
inline void share_with_tiles(CatShares& shares, const CatGeometry& geometry,
                             const std::vector<CatLaidOut>& inputs, const CatSharing& by) {
  CatMerged merged = merge(geometry, inputs, false);
  int64_t elements = 0;
  int64_t of_tiles = 0;    // as many elements as their tiles have room for
  bool alone = true;       // nothing but transposes of one kind
  bool in_pieces = false;  // tiles would write sectors
  for (CatStridedInput& input : merged.inputs) {
    input.tile_dim = tile_dim_of(merged.geometry, input, by.element_size);
    if (input.tile_dim >= 0) {
      const int64_t segment = inputs[input.position].size_at_dim * geometry.step;
      elements += segment * geometry.rows;
      of_tiles += elements_of_tiles(merged.geometry, input, by.element_size);
      const int64_t bytes = segment * by.element_size;
      in_pieces =
          in_pieces || (segment < kShortSegment && bytes < kShortSegmentBytes && bytes % kSectorBytes != 0);
      if (shares.tiled.empty()) {
        shares.tiled.reserve(merged.inputs.size());
      }
      shares.tiled.push_back(input);
      alone = alone && input.tile_dim == shares.tiled.front().tile_dim;
    }
  }
  alone = alone && shares.tiled.size() == inputs.size();
  in_pieces = in_pieces && !(alone && by.element_size == 1);
  // Patches of the input (gather.cuh) take no longer.
  const bool bytes = by.element_size == 1 && !by.converts;
  if (bytes || in_pieces || shares.tiled.empty() ||
      !are_full(static_cast<double>(elements), static_cast<double>(of_tiles), by)) {
    shares.tiled.clear();
    return;
  }
  shares.merged = std::move(merged.geometry);
  for (const CatStridedInput& input : shares.tiled) {
    shares.ways[input.position] = CatWay::Tiles;
  }
}

// Bytes of the shortest run along a dimension of each input's memory, which is not the last of the result; 0:
// the memory of some input does not run along it, or is expanded.
inline int64_t shortest_run(const CatMerged& merged, size_t along, int64_t element_size) {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const CatStridedInput& input : merged.inputs) {
    for (size_t d = 0; d < merged.geometry.sizes.size(); ++d) {
      if (size_of(merged.geometry, input, d) > 1 && input.strides[d] == 0) {
        return 0;
      }
    }
    const int64_t size = input.strides[along] == 1 ? size_of(merged.geometry, input, along) : 0;
    shortest = std::min(shortest, size * element_size);
  }
  return shortest;
}

// Whether all inputs have neighbours in memory along one dimension that is not the last of the result. Most
// calls have none, which is found out at the first input and without memory to merge them in.
inline bool may_share_a_run(const CatGeometry& geometry, const std::vector<CatLaidOut>& inputs) {
  for (size_t d = 0; d + 1 < geometry.from.size(); ++d) {
    const bool joined = geometry.dim > d;
    if ((!joined || inputs.size() <= cuda::kPanelInputs) &&
        std::all_of(inputs.begin(), inputs.end(),
                    [at = geometry.from[d]](const CatLaidOut& input) { return input.strides[at] == 1; })) {
      return true;
    }
  }
  return false;
}

// Makes the whole of a result of `elements` by panels, where that is faster. Returns whether it is.
inline bool share_with_panels(CatShares& shares, const CatGeometry& geometry,
                              const std::vector<CatLaidOut>& inputs, int64_t elements, const CatSharing& by) {
  const int64_t bytes = elements * by.element_size;
  // The kernel counts elements in 32 bits.
  if (by.converts || elements > std::numeric_limits<int32_t>::max() ||
      cuda::is_below_panels(bytes, by.element_size, by.gpu) || !may_share_a_run(geometry, inputs)) {
    return false;
  }
  CatMerged merged = merge(geometry, inputs, true);
  const CatGeometry& of = merged.geometry;
  if (of.sizes.size() > cuda::kPanelDims) {
    return false;
  }
  for (size_t along = 0; along + 1 < of.sizes.size(); ++along) {
    const int64_t run = shortest_run(merged, along, by.element_size);
    const int64_t row = of.out_strides[along];
    const bool joined = of.dim > along;  // a row holds all inputs
    if (cuda::is_by_panels(bytes, row, run, joined, static_cast<int64_t>(inputs.size()), by.element_size,
                           by.gpu)) {
      shares.column_bytes = cuda::bytes_of_column(bytes, row, run, by.gpu);
      for (CatStridedInput& input : merged.inputs) {
        input.tile_dim = static_cast<int>(along);
      }
      shares.tiled = std::move(merged.inputs);
      shares.merged = std::move(merged.geometry);
      shares.ways.assign(inputs.size(), CatWay::Panels);
      return true;
    }
  }
  return false;
}

// By lengths alone: that of convert.cu knows addresses as well.
inline bool converts_in_vectors(const cuda::CatGpu& gpu, const CatGeometry& geometry,
                                const std::vector<CatLaidOut>& inputs, int64_t element_size) {
  int64_t row_size = 0;
  int64_t all = 0;
  for (const CatLaidOut& input : inputs) {
    const int64_t segment = input.size_at_dim * geometry.step;
    row_size += segment;
    all |= segment * element_size;
  }
  return converts_in_vectors(gpu, geometry.rows, row_size, static_cast<int64_t>(inputs.size()),
                             all % kVectorBytes == 0);
}

inline CatShares share_out(const CatGeometry& geometry, const std::vector<CatLaidOut>& inputs,
                           const CatSharing& by) {
  CatShares shares{std::vector<CatWay>(inputs.size(), CatWay::Runs), std::nullopt, {}};
  int64_t elements = 0;
  int64_t runs = 0;     // of them
  bool across = false;  // the memory of some input does not run along the result's
  bool gathers = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const CatLaidOut& input = inputs[i];
    const int64_t numel = input.size_at_dim * geometry.rows * geometry.step;
    elements += numel;
    runs += input.is_run ? numel : 0;
    if (!input.is_run) {
      shares.ways[i] = CatWay::Gather;
      gathers = true;
      across = across || input.strides[geometry.from.back()] != 1;
    }
  }
  if (across && share_with_panels(shares, geometry, inputs, elements, by)) {
    return shares;
  }
  // Most calls are small or have no transpose, and the search would cost the host more than the GPU takes.
  if (across && by.gpu.is_large(elements * by.element_size)) {
    share_with_tiles(shares, geometry, inputs, by);
    gathers = std::count(shares.ways.begin(), shares.ways.end(), CatWay::Gather) > 0;
  }
  // Runs keep their kernel where they are much of the result and the call takes two launches anyway, or where
  // they are converted in vectors there, one by one here.
  const bool apart = by.converts ? converts_in_vectors(by.gpu, geometry, inputs, by.element_size) : !gathers;
  if (!(apart && kRunsOfAll[1] * runs >= kRunsOfAll[0] * elements)) {
    std::replace(shares.ways.begin(), shares.ways.end(), CatWay::Runs, CatWay::Gather);
  }
  return shares;
}

}  // namespace aten_ext
