// What the products of a recurrence over the whole GPU are made of: operands, and words of the state.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "device/mma.cuh"
#include "device/vector.cuh"
#include "ops/rnn/flagged.cuh"
#include "ops/rnn/operands.cuh"

namespace aten_ext::cuda {

// Two units and the number of their step in 64 bits, and 16 columns of a tile of A.
template <typename Element>
struct GridMma {
  static constexpr int kTagBits = 32;
  static constexpr int kRegisters = 4;

  static __device__ __forceinline__ uint32_t pack(float x, float y) {
    const Element both[2] = {from_op<Element>(x), from_op<Element>(y)};
    uint32_t bits;
    memcpy(&bits, both, sizeof(bits));
    return bits;
  }
  static __device__ __forceinline__ uint64_t word(float x, float y, uint32_t tag) {
    return static_cast<uint64_t>(tag) << 32 | pack(x, y);
  }
  static __device__ __forceinline__ uint32_t tag(int64_t step) {
    return static_cast<uint32_t>(step);
  }
  // Columns 4 t + {0..3} of rows g and g + 8.
  static __device__ __forceinline__ void set(uint32_t (&a)[kRegisters], const float (&low)[4],
                                             const float (&high)[4]) {
    a[0] = pack(low[0], low[1]);
    a[1] = pack(high[0], high[1]);
    a[2] = pack(low[2], low[3]);
    a[3] = pack(high[2], high[3]);
  }
  using Operand = uint2;
  static __device__ __forceinline__ Operand operand(const WordPair& words) {
    return {static_cast<uint32_t>(words.first), static_cast<uint32_t>(words.second)};
  }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[kRegisters],
                                                      const Operand& b) {
    RnnMma<Element>::multiply_add(sum, a, {b.x, b.y});
  }
};

template <>
struct GridMma<Tf32> {
  static constexpr int kTagBits = 26;
  static constexpr int kRegisters = 8;

  static __device__ __forceinline__ uint64_t word(float x, float y, uint32_t tag) {
    return static_cast<uint64_t>(tag) << 38 | static_cast<uint64_t>(round_to_tf32(y) >> 13) << 19 |
           round_to_tf32(x) >> 13;
  }
  static __device__ __forceinline__ uint32_t tag(int64_t step) {
    return static_cast<uint32_t>(step) & ((1u << kTagBits) - 1);
  }
  static __device__ __forceinline__ void set(uint32_t (&a)[kRegisters], const float (&low)[4],
                                             const float (&high)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[2 * i] = round_to_tf32(low[i]);
      a[2 * i + 1] = round_to_tf32(high[i]);
    }
  }
  using Operand = WordPair;  // unpacked where it is used: that is fewer registers
  static __device__ __forceinline__ Operand operand(const WordPair& words) {
    return words;
  }
  static __device__ __forceinline__ void multiply_add(float (&sum)[4], const uint32_t (&a)[kRegisters],
                                                      const Operand& b) {
    mma_m16n8k8_tf32(sum, {a[0], a[1], a[2], a[3]},
                     {static_cast<uint32_t>(b.first) << 13, static_cast<uint32_t>(b.first >> 19) << 13});
    mma_m16n8k8_tf32(sum, {a[4], a[5], a[6], a[7]},
                     {static_cast<uint32_t>(b.second) << 13, static_cast<uint32_t>(b.second >> 19) << 13});
  }
};

}  // namespace aten_ext::cuda
