// The device side of cat by strides (gather.cu): what the kernel is told about the inputs, and how a block
// makes its part of one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "core/dtype.h"
#include "device/division.cuh"
#include "device/search.cuh"
#include "ops/cat/convert.cuh"
#include "ops/cat/window.cuh"

namespace aten_ext::cuda {

// ---- arguments ---------------------------------------------------------------------------------------

template <typename Index>
struct GatherDim {
  Divider<Index> size;
  Index stride;
};

// What inputs have in common that differ in their data and place alone. Everything in elements. Its
// dimensions follow it.
template <typename Index>
struct GatherShape {
  Divider<Index> segment;  // of a row of the result
  Divider<Index> packs;    // that cover a segment
  Index items;             // elements; or packs, where it is made by them
  Index reach;             // in memory, from the first element to the end of the last
  uint32_t dims;
  bool by_packs;

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
  bool single;  // a thread moves one element
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

// ---- elements ----------------------------------------------------------------------------------------

// `count` elements of each thread, neighbours by neighbouring threads.
template <typename T, bool converts, int count, typename Args>
__device__ __forceinline__ void move_elements(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  const GatherShape<Index>& shape = args.shape_of(input);
  const Index first = static_cast<Index>(block) * (blockDim.x * count) + threadIdx.x;
  if (first >= shape.items) {
    return;
  }
  Index rest[count];
  Index to[count];
  Index from[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    // Those beyond the end load the last one again.
    rest[i] = min(first + i * blockDim.x, shape.items - 1);
    const auto [row, at] = shape.segment(rest[i]);
    to[i] = row * args.row_size + args.begin[input] + at;
    from[i] = 0;
  }
  const GatherDim<Index>* const dims = shape.begin();
#pragma unroll 1
  for (int d = static_cast<int>(shape.dims) - 1; d > 0; --d) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const auto [quotient, at] = dims[d].size(rest[i]);
      from[i] += at * dims[d].stride;
      rest[i] = quotient;
    }
  }
  T x[count][1];
  if constexpr (converts) {
    const void* data[count];
    int64_t element[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      data[i] = args.data[input];
      element[i] = static_cast<int64_t>(from[i] + rest[i] * dims[0].stride);
    }
    load_as(x, data, element, args.dtype[input]);
  } else {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      x[i][0] = static_cast<const T*>(args.data[input])[from[i] + rest[i] * dims[0].stride];
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    if (first + i * blockDim.x < shape.items) {
      reinterpret_cast<T*>(args.out)[to[i]] = x[i][0];
    }
  }
}

// ---- packs -------------------------------------------------------------------------------------------

// Sixteen bytes of which each element is `x`.
template <typename T>
__device__ __forceinline__ uint4 splat(T x) {
  const uint32_t word = sizeof(T) == 1 ? x * 0x01010101u : sizeof(T) == 2 ? x * 0x00010001u : x;
  return {word, word, word, word};
}

// Sixteen bytes at an address of which window_fits is true.
__device__ __forceinline__ uint4 load_fitting(const char* address) {
  const uint32_t shift = phase_of(address);
  const auto* const aligned = reinterpret_cast<const uint4*>(address - shift);
  const uint4 low = aligned[0];
  return shift == 0 ? low : shift_bytes(low, aligned[1], shift);
}

// Where the innermost dimension number `outer` begins.
template <typename Index>
__device__ __forceinline__ Index begin_of(const GatherShape<Index>& shape, const GatherDim<Index>* dims,
                                          Index outer) {
  if (shape.dims == 1) {
    return 0;
  }
  Index begin = 0;
#pragma unroll 1
  for (int d = static_cast<int>(shape.dims) - 2; d > 0; --d) {
    const auto [quotient, at] = dims[d].size(outer);
    begin += at * dims[d].stride;
    outer = quotient;
  }
  return begin + outer * dims[0].stride;
}

// One aligned vector of 16 bytes of the result a thread, of an input whose innermost dimension has stride 1
// or 0 and is at least as long as a vector: so it lies in one such run or in two. At the ends of a segment a
// part of it is another's.
template <typename T, typename Args>
__device__ __forceinline__ void make_pack(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  constexpr int kBytes = sizeof(T);
  constexpr int kPack = 16 / kBytes;
  const GatherShape<Index>& shape = args.shape_of(input);
  const Index item = static_cast<Index>(block) * blockDim.x + threadIdx.x;
  if (item >= shape.items) {
    return;
  }
  const auto [row, nth] = shape.packs(item);
  char* const start = args.out + kBytes * static_cast<uint64_t>(row * args.row_size + args.begin[input]);
  const Index phase = phase_of(start) / kBytes;
  const Index at = max(kPack * nth, phase) - phase;
  const Index segment = shape.segment.divisor();
  if (at >= segment) {
    return;  // where segments differ in phase, some take one pack less
  }
  char* const to = start + kBytes * (static_cast<int64_t>(kPack * nth) - static_cast<int64_t>(phase));
  const int skip = nth == 0 ? static_cast<int>(phase) : 0;  // elements of the pack that are not ours
  const Index left = segment - at;
  const int end = left < static_cast<Index>(kPack - skip) ? skip + static_cast<int>(left) : kPack;

  const GatherDim<Index>* const dims = shape.begin();
  const GatherDim<Index>& inner = dims[shape.dims - 1];
  const auto [outer, within] = inner.size(row * segment + at);
  const Index inside = inner.size.divisor() - within;  // elements of this run
  const bool crosses = inside < static_cast<Index>(end - skip);
  const Index first = begin_of(shape, dims, outer);
  const Index second = crosses ? begin_of(shape, dims, outer + 1) : first;
  const int middle = crosses ? skip + static_cast<int>(inside) : kPack;
  const char* const data = static_cast<const char*>(args.data[input]);

  uint4 value;
  if (inner.stride == 0) {
    const T* const elements = reinterpret_cast<const T*>(data);
    const T x = elements[first];
    const T y = elements[second];
    value = crosses ? merge_bytes(splat(x), splat(y), kBytes * middle, 16) : splat(x);
  } else {
    const char* const from = data + kBytes * static_cast<uint64_t>(first + within) - kBytes * skip;
    const char* const then = crosses ? data + kBytes * static_cast<uint64_t>(second) - kBytes * middle : from;
    const Extent extent{data, data + kBytes * static_cast<uint64_t>(shape.reach)};
    if (!window_fits(from, extent) || !window_fits(then, extent)) {
      // At an end of the input's memory.
#pragma unroll 1
      for (int i = skip; i < end; ++i) {
        const char* const address = (i < middle ? from : then) + kBytes * i;
        reinterpret_cast<T*>(to)[i] = *reinterpret_cast<const T*>(address);
      }
      return;
    }
    value = load_fitting(from);
    if (crosses) {
      value = merge_bytes(value, load_fitting(then), kBytes * middle, 16);
    }
  }
  store_granule<(kBytes < 4 ? kBytes : 4)>(to, value, kBytes * skip, kBytes * end);
}

}  // namespace aten_ext::cuda
