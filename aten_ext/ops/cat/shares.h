// Which kernel of cat takes which inputs of a call that are not all contiguous.
//
// Upstream makes such a call in one launch, or in one for each input, and a launch more costs as much as
// megabytes of memory traffic. So one kernel, that of gather.cu, takes all inputs unless another one wins
// back its launch.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/cat/geometry.h"

namespace aten_ext {

enum class CatWay : uint8_t { Runs, Gather, Tiles };

// An input in the order of the geometry, not merged.
struct CatLaidOut {
  c10::SmallVector<int64_t, 8> strides;
  int64_t size_at_dim;
  int64_t row_stride;  // of a run
  bool is_run;
};

struct CatShares {
  std::vector<CatWay> ways;  // of each input
  // Those by tiles, merged all alike.
  CatGeometry merged;
  std::vector<CatStridedInput> tiled;
};

// Up to here, in elements for each multiprocessor, transposes are gathered: alone, because two trips through
// shared memory take as long, and in company, because another launch does.
constexpr int64_t kGatheredTransposes = 512;
constexpr int64_t kGatheredInCompany = 8192;

inline CatShares share_out(const CatGeometry& geometry, const std::vector<CatLaidOut>& inputs, bool converts,
                           int multiprocessors) {
  CatShares shares{std::vector<CatWay>(inputs.size(), CatWay::Runs), geometry, {}};
  std::vector<CatStridedInput> strided;
  strided.reserve(inputs.size());
  int64_t numel = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    numel += inputs[i].size_at_dim * geometry.rows * geometry.step;
    if (!inputs[i].is_run) {
      shares.ways[i] = CatWay::Gather;
      strided.push_back({inputs[i].strides, inputs[i].size_at_dim, i});
    }
  }
  if (strided.empty()) {
    return shares;
  }

  std::vector<CatStridedInput*> all;
  all.reserve(strided.size());
  for (CatStridedInput& input : strided) {
    all.push_back(&input);
  }
  merge_dimensions(shares.merged, all);
  int64_t elements = 0;
  bool alone = true;  // nothing but transposes of one kind
  int first_tile_dim = -1;
  for (const CatStridedInput& input : strided) {
    const int tile_dim = tile_dim_of(shares.merged, input);
    if (tile_dim >= 0) {
      elements += inputs[input.position].size_at_dim * geometry.rows * geometry.step;
      if (shares.tiled.empty()) {
        first_tile_dim = tile_dim;
        shares.tiled.reserve(strided.size());
      }
      shares.tiled.push_back(input);
      alone = alone && tile_dim == first_tile_dim;
    }
  }
  alone = alone && shares.tiled.size() == inputs.size();
  if (elements > (alone ? kGatheredTransposes : kGatheredInCompany) * multiprocessors) {
    for (const CatStridedInput& input : shares.tiled) {
      shares.ways[input.position] = CatWay::Tiles;
    }
  } else {
    shares.tiled.clear();
  }

  // Runs keep their kernel where the call takes two launches anyway, and where many are to be converted: by
  // vectors there, one by one here.
  const bool gathers = std::count(shares.ways.begin(), shares.ways.end(), CatWay::Gather) > 0;
  if (gathers && !(converts && numel > kGatheredInCompany * multiprocessors)) {
    std::replace(shares.ways.begin(), shares.ways.end(), CatWay::Runs, CatWay::Gather);
  }
  return shares;
}

}  // namespace aten_ext
