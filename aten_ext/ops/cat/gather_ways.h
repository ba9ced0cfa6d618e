// What a thread of gather.cu makes of an input, and whether inputs take turns. Timings: docs/kernels/cat.md.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {

// One element, kElements by themselves, kElementsOfLine where the input and the result are lines, one vector
// of 16 bytes, kFilled of them of an input that is one element, kStrips strips of neighbours, or what lies in
// 16 bytes of the input.
enum class GatherWay : uint8_t { Single, Elements, Line, Packs, Fill, Strips, Patches };

// ---- policy ------------------------------------------------------------------------------------------

// Results of up to so many elements for each multiprocessor, where latency decides: a thread moves one, or
// converts one.
inline constexpr int64_t kSinglesPerSM = 512;
inline constexpr int64_t kConvertedSinglesPerSM = 1024;
// Of a few inputs that are all transposes more elements, of up to 2 bytes or larger ones: a thread waits as
// long for one as for several, each of which is in a sector of its own. From so many bytes between two
// elements of a sector on; and of those that are in step.
struct TransposedSingles {
  int64_t between;
  int64_t per_sm[2];
  int64_t in_step[2];
};
inline constexpr TransposedSingles kTransposedSingles[] = {{0, {800, 1536}, {1536, 1536}},
                                                           {4 << 10, {512, 512}, {800, 1536}},
                                                           {11 << 10, {800, 800}, {800, 800}},
                                                           {18 << 10, {1200, 800}, {1200, 800}}};
inline constexpr int64_t kTransposesOfSingles = 6;  // no more were timed
// Neighbours in the result are in step if they are a multiple of so many bytes apart, of up to 2 bytes or
// larger ones, as columns of powers of two are: several at a time lose there, presumably as their sectors
// share a few sets of the L1.
inline constexpr int64_t kInStep[2] = {64, 256};
// And of any number of inputs whose elements are so many bytes apart at least: a sector holds one of them,
// and a thread that moves several waits for as many. Elements of 4 bytes may be a little nearer, in rows of
// the result of as many bytes, if the L2 holds what is read.
inline constexpr int64_t kLoneElement = 24;
inline constexpr int64_t kLoneWord = 16;
// And in any call an input that is one column of a result of so many: a warp stores each of its elements by
// itself, so that its few blocks would end last if a thread had several.
inline constexpr int64_t kColumnsBesideOne = 16;
// Packs, in results of more elements for each multiprocessor than this, as smaller ones have too few packs,
// from segments of so many elements on: at both ends of a segment is a pack that is stored in pieces. Or from
// fewer on, of up to 2 bytes each, where all segments begin and end with a pack.
inline constexpr int64_t kPacksPerSM = 4096;
inline constexpr int64_t kPackedSegment = 192;
inline constexpr int64_t kWholePacks = 64;
// And from innermost dimensions of this many bytes on. Shorter ones put most packs across two of them, which
// elements of 4 bytes do not win back. Larger elements are vectors enough.
inline constexpr int64_t kPackedRun = 16;
inline constexpr int64_t kPackedRunOfWords = 64;
// Strips, in results of so many elements for each multiprocessor, from segments of so many elements on. Where
// more bytes are read before a sector's next element than this, strips read more sectors at a time than the
// L1 keeps until then, unless neighbours are so near that a warp reads most of a sector at once. Short runs
// put most strips in two of them, and none may lie in three.
inline constexpr int64_t kStripsPerSM = 16384;
inline constexpr int64_t kSegmentOfStrips = 64;
inline constexpr int64_t kRunOfStrips = 8;
inline constexpr int64_t kShortRunOfStrips = 3;
inline constexpr int64_t kReadBetweenStrips = int64_t{64} << 10;
inline constexpr int64_t kReadBetweenStripsOfShortRuns = int64_t{1} << 10;
inline constexpr int64_t kNearNeighbours = 16;  // bytes
// Patches, where so many elements at least lie between two that are neighbours in memory, and so many of the
// patches' elements are the input's, 4 / 5. Elements one by one find in the L1 what their neighbours have
// read, unless many bytes are read in between: the more, the smaller are results that patches make sooner.
// From 24 KB on, where each element of a row is in a sector of its own, fewer patches and emptier ones, 1 / 2
// or 3 / 5 of larger elements, are better. And patches that lie at multiples of 16 bytes, of 8-byte elements
// 128, are loaded as one vector: fewer of them will do, whatever is between.
inline constexpr int64_t kElementsBetweenPatches = 32;
inline constexpr int64_t kFarApart = int64_t{24} << 10;
inline constexpr int64_t kPatchesPerSMFarApart = 160;
inline constexpr int64_t kAlignedPatches[2] = {16, 128};
inline constexpr int64_t kAlignedPatchesPerSM = 190;
inline constexpr int64_t kAlignedPatchesPerSMFarApart = 120;
inline constexpr int64_t kFullPatches[2] = {4, 5};
inline constexpr int64_t kFullPatchesFarApart[2][2] = {{1, 2}, {3, 5}};
// Others, from so many bytes between two elements of a sector on: results of so many patches for each
// multiprocessor, of elements of 1, 2, 4 and 8 bytes.
struct PatchesFrom {
  int64_t between;
  int64_t per_sm[4];
};
inline constexpr int64_t kNoPatches = int64_t{1} << 40;
inline constexpr PatchesFrom kPatchesFrom[] = {
    {0, {350, 400, kNoPatches, kNoPatches}}, {8 << 10, {350, 380, 1600, 2200}},
    {11 << 10, {310, 350, 900, 900}},        {13 << 10, {230, 350, 600, 900}},
    {15 << 10, {190, 250, 600, 900}},        {18 << 10, {190, 190, 190, 190}}};

// Inputs take turns in a large result, where all would have at most so many times as many blocks if they had
// as many as the one with the most; up to segments of so many bytes on average, since turns help the sectors
// at their ends alone; and where all that the inputs read before they come back to a sector is half of the L2
// at most. A result is large in itself, or if more sectors are read for it than the L2 holds: they push out
// what is written in part.
inline constexpr int64_t kMostTurns = 4;
inline constexpr int64_t kSegmentInTurns = 640;
inline constexpr int64_t kSectorBytes = 32;

// ---- which way ---------------------------------------------------------------------------------------

// Whether the result has more elements for each multiprocessor.
inline bool is_beyond(const CatGatherParams& p, int64_t elements) {
  return p.rows * p.row_size > elements * p.gpu.multiprocessors;
}

// Whether neighbours of the last dimension are further apart in memory than those of another.
inline bool is_transposed(const CatGatherInput& input) {
  const int64_t* const last = input.strides + input.dims - 1;
  return std::any_of(input.strides, last, [last](int64_t stride) { return 0 < stride && stride < *last; });
}

// Whether no two elements are near neighbours in memory.
inline bool are_lone(const CatGatherParams& p, const CatGatherInput& input) {
  const bool words = p.element_size == 4 && p.row_size * p.element_size >= kLoneElement &&
                     p.rows * p.row_size * kLoneWord <= p.gpu.l2_bytes;
  const int64_t apart = words ? kLoneWord : kLoneElement;
  for (int d = 0; d < input.dims; ++d) {
    if (input.sizes[d] > 1 && input.strides[d] * p.element_size < apart) {
      return false;
    }
  }
  return true;
}

inline bool is_by_packs(const CatGatherParams& p, const CatGatherInput& input) {
  const int64_t size = p.element_size;
  const auto first = static_cast<int64_t>(reinterpret_cast<uintptr_t>(p.out)) + input.begin * size;
  const bool whole = ((first | (input.segment * size) | (p.rows > 1 ? p.row_size * size : 0)) & 15) == 0;
  return !p.converts && size < 8 && is_beyond(p, kPacksPerSM) && input.strides[input.dims - 1] <= 1 &&
         input.segment >= (whole && size <= 2 ? kWholePacks : kPackedSegment) &&
         input.sizes[input.dims - 1] * size >= (size >= 4 ? kPackedRunOfWords : kPackedRun);
}

// Elements of the input between two neighbours along a dimension.
inline int64_t elements_between(const CatGatherInput& input, int dim) {
  int64_t elements = 1;
  for (int d = dim + 1; d < input.dims; ++d) {
    elements *= input.sizes[d];
  }
  return elements;
}

// The dimension along which neighbours share sectors, if any are so near.
inline int closest_dim(const CatGatherInput& input) {
  int closest = input.dims - 1;
  for (int d = closest; d >= 0; --d) {
    closest = input.strides[d] < input.strides[closest] ? d : closest;
  }
  return closest;
}

// Bytes of the sectors that an input's elements are in.
inline int64_t bytes_read(const CatGatherParams& p, const CatGatherInput& input) {
  const int64_t apart = input.strides[closest_dim(input)] * p.element_size;
  return p.rows * input.segment * std::min(apart, kSectorBytes);
}

// Bytes of the sectors that are read between two elements of the same one: each of the elements between them
// in the result may have a sector of its own. Nothing where no other element of a sector is the input's.
inline int64_t bytes_between(const CatGatherParams& p, const CatGatherInput& input) {
  const int closest = closest_dim(input);
  return input.strides[closest] * p.element_size < kSectorBytes
             ? elements_between(input, closest) * kSectorBytes
             : 0;
}

inline bool are_in_step(const CatGatherParams& p, const CatGatherInput& input) {
  return input.strides[input.dims - 1] * p.element_size % kInStep[p.element_size > 2] == 0;
}

// Whether an input is a transpose, in a result of so few elements that a thread moves one.
inline bool is_transpose_of_singles(const CatGatherParams& p, const CatGatherInput& input) {
  const int64_t between = bytes_between(p, input);
  const bool in_step = are_in_step(p, input);
  int64_t most = 0;
  for (const TransposedSingles& from : kTransposedSingles) {
    most = between >= from.between ? (in_step ? from.in_step : from.per_sm)[p.element_size > 2] : most;
  }
  return is_transposed(input) && !is_beyond(p, most);
}

// Whether the kernel is the one whose threads move single elements.
inline bool is_single(const CatGatherParams& p) {
  if (!is_beyond(p, p.converts ? kConvertedSinglesPerSM : kSinglesPerSM)) {
    return true;
  }
  const auto all = [&p](bool (*is)(const CatGatherParams&, const CatGatherInput&)) {
    return std::all_of(p.inputs, p.inputs + p.count,
                       [&](const CatGatherInput& input) { return is(p, input); });
  };
  return !p.converts && (all(are_lone) || (p.count <= kTransposesOfSingles && all(is_transpose_of_singles)));
}

inline bool is_by_strips(const CatGatherParams& p, const CatGatherInput& input) {
  const int last = input.dims - 1;
  const int64_t between =
      input.sizes[last] >= kRunOfStrips ? kReadBetweenStrips : kReadBetweenStripsOfShortRuns;
  return !p.converts && p.element_size <= 2 && is_beyond(p, kStripsPerSM) &&
         input.segment >= kSegmentOfStrips && input.sizes[last] >= kShortRunOfStrips &&
         (input.strides[last] * p.element_size < kNearNeighbours || bytes_between(p, input) <= between);
}

// Whether all patches of an input lie where they are loaded at once.
inline bool are_patches_aligned(const CatGatherParams& p, const CatGatherInput& input) {
  auto all = reinterpret_cast<uintptr_t>(input.data) % 16;
  for (int d = 0; d < input.dims; ++d) {
    const int64_t stride = input.strides[d];
    all |= stride == 1 ? 0 : stride * p.element_size % kAlignedPatches[p.element_size == 8];
  }
  return all == 0;
}

// From so many patches for each multiprocessor on they are sooner than elements.
inline int64_t least_patches(const CatGatherParams& p, const CatGatherInput& input, int64_t between,
                             bool far_apart) {
  const bool aligned = are_patches_aligned(p, input);
  if (far_apart) {
    return aligned ? kAlignedPatchesPerSMFarApart : kPatchesPerSMFarApart;
  }
  const int size = index_of_size(p.element_size);
  int64_t least = kNoPatches;
  for (const PatchesFrom& from : kPatchesFrom) {
    least = between >= from.between ? from.per_sm[size] : least;
  }
  return aligned ? std::min(least, kAlignedPatchesPerSM) : least;
}

// The dimension, not the last, along which an input's memory runs, if patches along it are mostly full.
inline int patch_dim_of(const CatGatherParams& p, const CatGatherInput& input) {
  const int64_t neighbours = input.strides[input.dims - 1];
  if (p.converts || p.element_size > 8 || neighbours <= 1) {
    return -1;
  }
  const int64_t between = bytes_between(p, input);
  const int64_t patch = 16 / p.element_size;
  const bool far_apart = between >= kFarApart && neighbours * p.element_size >= kSectorBytes;
  const int64_t* const full = far_apart ? kFullPatchesFarApart[p.element_size > 2] : kFullPatches;
  if (!is_beyond(p, least_patches(p, input, between, far_apart) * patch)) {
    return -1;
  }
  for (int d = 0; d < input.dims - 1; ++d) {
    if (input.strides[d] == 1 && elements_between(input, d) >= kElementsBetweenPatches &&
        full[1] * input.sizes[d] >= full[0] * ceil_div(input.sizes[d], patch) * patch) {
      return d;
    }
  }
  return -1;
}

struct GatherChoice {
  GatherWay way;
  int along = 0;  // of patches: the dimension that they lie along
};

// `single`: is_single(p).
inline GatherChoice choose_way(const CatGatherParams& p, const CatGatherInput& input, bool single) {
  if (single) {
    return {GatherWay::Single};
  }
  if (is_by_packs(p, input)) {
    const bool is_one_element = p.rows == 1 && input.dims == 1 && input.strides[0] == 0;
    return {is_one_element ? GatherWay::Fill : GatherWay::Packs};
  }
  if (p.rows == 1 && input.dims == 1 && !p.converts) {
    return {GatherWay::Line};
  }
  if (const int along = patch_dim_of(p, input); along >= 0) {
    return {GatherWay::Patches, along};
  }
  if (!p.converts && input.segment == 1 && p.row_size > kColumnsBesideOne) {
    return {GatherWay::Single};
  }
  return {is_by_strips(p, input) ? GatherWay::Strips : GatherWay::Elements};
}

// ---- turns -------------------------------------------------------------------------------------------

// Whether inputs that share rows of a large result write them at about the same time: sectors that hold
// elements of two are whole before they leave the L2. In a small one inputs that are read across gain by
// having the GPU to themselves, as do those which would not find in the L2 what they have read before.
inline bool take_turns(const CatGatherParams& p) {
  const int64_t row_bytes = p.row_size * p.element_size;
  if (p.rows == 1 || row_bytes > kSegmentInTurns * p.count) {
    return false;
  }
  int64_t between = 0;
  int64_t read = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    between += bytes_between(p, p.inputs[i]);
    read += bytes_read(p, p.inputs[i]);
  }
  return between <= p.gpu.l2_bytes / 2 && (p.gpu.is_large(p.rows * row_bytes) || read > p.gpu.l2_bytes);
}

}  // namespace aten_ext::cuda
