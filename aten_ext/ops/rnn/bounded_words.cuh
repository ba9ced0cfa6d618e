// Two states of 16 bits, from -1 to 1, that carry the turn of their step: words no larger than what is in
// them.
//
// The uppermost bit of the exponent is clear in every number below 2, so the tag is there. Of a slot that is
// written at every second step what is in it can only be the last state or the one before, so one bit tells
// them apart: set at a slot's first step, which finds zeros there, clear at the next, and so on.
//
// NaN has that bit too. It travels as the largest number below 2, which no state is. A unit in the last place
// more and it is 2, whose uppermost bit of the exponent is the one that makes it NaN again.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "device/vector.cuh"
#include "ops/rnn/flagged.cuh"

namespace aten_ext::cuda {

constexpr uint32_t kBoundedTag = 0x40004000;

// Of the words of a step from 1 on. Steps 1 and 2 are the first of the two buffers.
__device__ __forceinline__ uint32_t bounded_tag(int64_t step) {
  return ((step - 1) >> 1 & 1) == 0 ? kBoundedTag : 0;
}

template <typename Element>
__device__ __forceinline__ uint32_t pack_bounded(float x, float y, uint32_t tag) {
  constexpr float kBeyondStates = 1.5f;
  constexpr uint32_t kNan = 0x3fff;
  const auto bits_of = [](float state) {
    const Element element = from_op<Element>(state);
    uint16_t bits;
    memcpy(&bits, &element, sizeof(bits));
    return fabsf(state) < kBeyondStates ? uint32_t{bits} : kNan;
  };
  return bits_of(y) << 16 | bits_of(x) | tag;
}

// The two states as they were.
__device__ __forceinline__ uint32_t unpack_bounded(uint32_t word) {
  const uint32_t states = word & ~kBoundedTag;
  return states | (((states & 0x3fff3fff) + 0x00010001) & kBoundedTag);
}

struct FourBoundedWords {
  using Vector = FourWords;
  static __device__ __forceinline__ Vector load(const uint64_t* from) {
    return load_four_words(from);
  }
  static __device__ __forceinline__ bool carries(const Vector& words, uint32_t tag) {
    const uint32_t other =
        (words.value[0] ^ tag) | (words.value[1] ^ tag) | (words.value[2] ^ tag) | (words.value[3] ^ tag);
    return (other & kBoundedTag) == 0;
  }
};

}  // namespace aten_ext::cuda
