// The device side of cat by strides (gather.cu): how a block makes its part of an input.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/division.cuh"
#include "ops/cat/convert.cuh"
#include "ops/cat/gather_arguments.cuh"
#include "ops/cat/window.cuh"

namespace aten_ext::cuda {

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

// The same of an input of one dimension in a result of one row.
template <typename T, int count, typename Args>
__device__ __forceinline__ void move_line(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  const GatherShape<Index>& shape = args.shape_of(input);
  const Index first = static_cast<Index>(block) * (blockDim.x * count) + threadIdx.x;
  const Index stride = shape.begin()->stride;
  const T* const from = static_cast<const T*>(args.data[input]);
  T* const to = reinterpret_cast<T*>(args.out) + args.begin[input];
  T x[count];
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const Index at = first + i * blockDim.x;
    if (at < shape.items) {
      x[i] = from[at * stride];
    }
  }
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const Index at = first + i * blockDim.x;
    if (at < shape.items) {
      to[at] = x[i];
    }
  }
}

// ---- packs -------------------------------------------------------------------------------------------

// `length` elements of the result at an aligned address, of which those from `skip` up to `end` are the
// input's: at the ends of a segment a part of them is another's.
template <typename T, typename Index>
struct Place {
  T* to;
  Index at;  // of element `skip` in the input, row by row
  int skip;
  int end;

  __device__ __forceinline__ int count() const {
    return end - skip;
  }
};

// Number `item` of an input. Where segments differ in phase, some take one less, and the last is empty.
template <typename T, int length, typename Args, typename Index = typename Args::Index>
__device__ __forceinline__ Place<T, Index> place_of(const Args& args, uint32_t input,
                                                    const GatherShape<Index>& shape, Index item) {
  const auto [row, nth] = shape.packs(item);
  T* const start =
      reinterpret_cast<T*>(args.out) + static_cast<uint64_t>(row * args.row_size + args.begin[input]);
  const Index phase = phase_of<length* static_cast<int>(sizeof(T))>(start) / sizeof(T);
  const Index before = max(length * nth, phase) - phase;
  const Index segment = shape.segment.divisor();
  const Index left = before < segment ? segment - before : 0;
  const int skip = nth == 0 ? static_cast<int>(phase) : 0;
  return {start + (static_cast<int64_t>(length * nth) - static_cast<int64_t>(phase)), row * segment + before,
          skip, skip + static_cast<int>(min(left, static_cast<Index>(length - skip)))};
}

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
// or 0 and is at least as long as a vector: so it lies in one such run or in two.
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
  const Place<T, Index> place = place_of<T, kPack>(args, input, shape, item);
  if (place.count() == 0) {
    return;
  }
  const int skip = place.skip;
  const int end = place.end;
  const GatherDim<Index>* const dims = shape.begin();
  const GatherDim<Index>& inner = dims[shape.dims - 1];
  const auto [outer, within] = inner.size(place.at);
  const Index inside = inner.size.divisor() - within;  // elements of this run
  const bool crosses = inside < static_cast<Index>(place.count());
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
        place.to[i] = *reinterpret_cast<const T*>(address);
      }
      return;
    }
    value = load_fitting(from);
    if (crosses) {
      value = merge_bytes(value, load_fitting(then), kBytes * middle, 16);
    }
  }
  store_granule<(kBytes < 4 ? kBytes : 4)>(reinterpret_cast<char*>(place.to), value, kBytes * skip,
                                           kBytes * end);
}

// Aligned vectors of 16 bytes of a result of one row, neighbours by neighbouring threads, of an input that is
// one element everywhere.
template <typename T, typename Args>
__device__ __forceinline__ void make_fill(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  constexpr int kBytes = sizeof(T);
  constexpr int kPack = 16 / kBytes;
  const GatherShape<Index>& shape = args.shape_of(input);
  const Index first = static_cast<Index>(block) * (blockDim.x * kFilled) + threadIdx.x;
  const uint4 value = splat(*static_cast<const T*>(args.data[input]));
#pragma unroll
  for (int i = 0; i < kFilled; ++i) {
    const Index item = first + i * blockDim.x;
    if (item < shape.items) {
      const Place<T, Index> place = place_of<T, kPack>(args, input, shape, item);
      store_granule<(kBytes < 4 ? kBytes : 4)>(reinterpret_cast<char*>(place.to), value, kBytes * place.skip,
                                               kBytes * place.end);
    }
  }
}

// ---- strips ------------------------------------------------------------------------------------------

// Strips, neighbours by neighbouring threads, of an input whose innermost dimension is at least as long as
// one: so it lies in one such run or in two. A division then serves as many elements as a strip has.
template <typename T, typename Args>
__device__ __forceinline__ void make_strips(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  const GatherShape<Index>& shape = args.shape_of(input);
  const Index first = static_cast<Index>(block) * (blockDim.x * kStrips) + threadIdx.x;
  if (first >= shape.items) {
    return;
  }
  const GatherDim<Index>* const dims = shape.begin();
  const GatherDim<Index>& inner = dims[shape.dims - 1];
  const T* const data = static_cast<const T*>(args.data[input]);
  Place<T, Index> place[kStrips];
  alignas(kStrip * sizeof(T)) T x[kStrips][kStrip];
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    const Index item = first + i * blockDim.x;
    // Beyond the end the last one again.
    place[i] = place_of<T, kStrip>(args, input, shape, min(item, shape.items - 1));
    const auto [outer, within] = inner.size(place[i].at);
    const Index inside = inner.size.divisor() - within;  // elements of this run
    const Index from = begin_of(shape, dims, outer) + within * inner.stride;
    const bool crosses = inside < static_cast<Index>(place[i].count());
    const Index then = crosses ? begin_of(shape, dims, outer + 1) - inside * inner.stride : from;
#pragma unroll
    for (int j = 0; j < kStrip; ++j) {
      const auto nth = static_cast<Index>(j - place[i].skip);
      if (j >= place[i].skip && j < place[i].end) {
        x[i][j] = data[(nth < inside ? from : then) + nth * inner.stride];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kStrips; ++i) {
    if (place[i].count() == kStrip) {
      using Word = std::conditional_t<sizeof(T) == 1, uint32_t, uint2>;
      *reinterpret_cast<Word*>(place[i].to) = *reinterpret_cast<const Word*>(x[i]);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kStrip; ++j) {
      if (j >= place[i].skip && j < place[i].end) {
        place[i].to[j] = x[i][j];
      }
    }
  }
}

// ---- patches -----------------------------------------------------------------------------------------

// Sixteen bytes of the input a thread, along a dimension that is contiguous there and not the result's last:
// neighbouring threads store neighbours of the result, of as many of its runs as a patch has elements. In the
// input's dimensions, `along` counts patches.
template <typename T, typename Args>
__device__ __forceinline__ void make_patch(const Args& args, uint32_t input, uint32_t block) {
  using Index = typename Args::Index;
  constexpr int kPatch = 16 / sizeof(T);
  const GatherShape<Index>& shape = args.shape_of(input);
  Index rest = static_cast<Index>(block) * blockDim.x + threadIdx.x;
  if (rest >= shape.items) {
    return;
  }
  const GatherDim<Index>* const dims = shape.begin();
  Index from = 0;
  Index to = 0;     // of the first element in the input, row by row
  Index inner = 1;  // elements of the dimensions so far
  Index step = 0;   // between two elements
  Index left = 0;
#pragma unroll 1
  for (int d = static_cast<int>(shape.dims) - 1; d >= 0; --d) {
    const auto [quotient, at] = dims[d].size(rest);
    rest = quotient;
    from += at * dims[d].stride;
    Index size = dims[d].size.divisor();
    Index element = at;
    if (d == shape.along) {
      size = shape.packs.divisor();
      element = at * kPatch;
      step = inner;
      left = size - element;
    }
    to += element * inner;
    inner *= size;
  }
  const int count = static_cast<int>(min(left, Index{kPatch}));

  const T* const data = static_cast<const T*>(args.data[input]);
  const char* const address = reinterpret_cast<const char*>(data + from);
  const char* const begin = reinterpret_cast<const char*>(data);
  alignas(16) T x[kPatch];
  if (window_fits(address, Extent{begin, begin + sizeof(T) * static_cast<uint64_t>(shape.reach)})) {
    *reinterpret_cast<uint4*>(x) = load_fitting(address);
  } else {
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      if (i < count) {
        x[i] = data[from + i];
      }
    }
  }
  T* const out = reinterpret_cast<T*>(args.out) + args.begin[input];
#pragma unroll
  for (int i = 0; i < kPatch; ++i) {
    if (i < count) {
      const auto [row, at] = shape.segment(to + i * step);
      out[row * args.row_size + at] = x[i];
    }
  }
}

// ---- any of them -------------------------------------------------------------------------------------

template <typename T, typename Args>
__device__ __forceinline__ void make_part(const Args& args, uint32_t input, uint32_t block) {
  const GatherWay way = args.shape_of(input).way;
  if constexpr (sizeof(T) < 8) {
    if (way == GatherWay::Packs) {
      make_pack<T>(args, input, block);
      return;
    }
    if (way == GatherWay::Fill) {
      make_fill<T>(args, input, block);
      return;
    }
  }
  if constexpr (kHasStrips<T>) {
    if (way == GatherWay::Strips) {
      make_strips<T>(args, input, block);
      return;
    }
  }
  if constexpr (sizeof(T) <= 8) {
    if (way == GatherWay::Patches) {
      make_patch<T>(args, input, block);
      return;
    }
  }
  if (way == GatherWay::Single) {
    move_elements<T, false, 1>(args, input, block);
    return;
  }
  if (way == GatherWay::Line) {
    move_line<T, kElementsOfLine<T>>(args, input, block);
    return;
  }
  move_elements<T, false, kElements<T, false>>(args, input, block);
}

}  // namespace aten_ext::cuda
