// What the kernel of gather.cu is told about the inputs, and how a block finds its own.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/dtype.h"
#include "device/division.cuh"
#include "device/search.cuh"
#include "ops/cat/gather_ways.h"

namespace aten_ext::cuda {

// ---- arguments ---------------------------------------------------------------------------------------

template <typename Index>
struct GatherDim {
  Divider<Index> size;
  Index stride;
};

// Elements of a strip, and strips of a thread. A strip is one aligned store.
constexpr int kStrip = 4;
constexpr int kStrips = 2;
// Larger elements are moved as fast one by one.
template <typename T>
constexpr bool kHasStrips = sizeof(T) <= 2;

// Elements of a thread, where it makes no pack: with 48 warps an SM, 24 KB of fp32 under way.
template <typename T, bool converts>
constexpr int kElements = converts || sizeof(T) <= 4 ? 4 : 2;
// And of a thread of a line, which has nothing to compute between them.
template <typename T>
constexpr int kElementsOfLine = sizeof(T) <= 2 ? 8 : kElements<T, false>;
// And vectors of a thread that stores one element everywhere.
constexpr int kFilled = 4;

// What inputs have in common that differ in their data and place alone. Everything in elements. Its
// dimensions follow it.
template <typename Index>
struct GatherShape {
  Divider<Index> segment;  // of a row of the result
  Divider<Index> packs;    // or strips that cover a segment; of patches the size of dimension `along`
  Index items;             // elements, packs, strips or patches: what it is made by
  Index reach;             // in memory, from the first element to the end of the last
  uint32_t dims;
  GatherWay way;
  uint8_t along;  // the dimension that patches lie along

  __device__ __forceinline__ const GatherDim<Index>* begin() const {
    return reinterpret_cast<const GatherDim<Index>*>(this + 1);
  }
};

// What a small call reads is at the beginning: each line of constant memory is waited for.
template <typename Index_, int inputs, int bytes>
struct GatherArguments {
  using Index = Index_;
  static constexpr int kInputs = inputs;
  static constexpr int kRecordBytes =
      (bytes - 40 -
       inputs * static_cast<int>(sizeof(void*) + sizeof(Index) + sizeof(uint32_t) + sizeof(uint16_t) +
                                 sizeof(Dtype))) /
      8 * 8;

  char* out;
  Index row_size;
  Divider<uint32_t> blocks;  // of an input, if all have as many; or inputs, if those take turns
  int32_t count;
  bool equal_blocks;  // as far as the grid goes
  bool in_turns;      // the first block of each input, the second of each, and so on
  bool equal_shapes;
  Dtype dtype[inputs];
  uint16_t shape[inputs];  // where in `records`, in multiples of 4 bytes
  Index begin[inputs];
  const void* data[inputs];
  alignas(8) unsigned char records[kRecordBytes];  // each a GatherShape and its GatherDims
  // Its number; of inputs in turns what turn_share() says.
  uint32_t first_block[inputs];

  __device__ __forceinline__ const GatherShape<Index>& shape_of(uint32_t input) const {
    const int at = equal_shapes ? 0 : 4 * shape[input];
    return *reinterpret_cast<const GatherShape<Index>*>(records + at);
  }
};

// ---- which input -------------------------------------------------------------------------------------

// Of an input with `blocks` blocks, whose inputs take `turns` turns: blocks a turn as a fraction of 2^32,
// less one.
inline uint32_t turn_share(int64_t blocks, int64_t turns) {
  const auto whole = static_cast<uint64_t>(blocks) << 32;
  return static_cast<uint32_t>((whole + static_cast<uint64_t>(turns) - 1) / static_cast<uint64_t>(turns) - 1);
}

struct BlockOfInput {
  uint32_t input;
  uint32_t block;
  bool exists;
};

// The block's: which of the blocks of which input. The same for all of its threads, so that what follows
// from it is read once a warp.
template <typename Args>
__device__ __forceinline__ BlockOfInput find_input(const Args& args) {
  if (args.equal_blocks) {
    const auto [quotient, remainder] = args.blocks(blockIdx.x);
    if (!args.in_turns) {
      return {quotient, remainder, true};
    }
    // Inputs with fewer blocks sit out turns, evenly, so that all are as far.
    const uint64_t share = uint64_t{args.first_block[remainder]} + 1;
    const uint64_t before = quotient * share;
    const auto block = static_cast<uint32_t>(before >> 32);
    return {remainder, block, static_cast<uint32_t>((before + share) >> 32) != block};
  }
  const int input = find_last_begin(args.first_block, static_cast<uint32_t>(blockIdx.x), 0, args.count);
  return {static_cast<uint32_t>(input), blockIdx.x - args.first_block[input], true};
}

}  // namespace aten_ext::cuda
