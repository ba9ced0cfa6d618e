// Sixteen bytes from any address, by loads that are aligned and stay inside what may be read.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// What may be read: [begin, end), both multiples of the element size.
struct Extent {
  const char* begin;
  const char* end;
};

// Bytes by which an address exceeds a multiple of 16. (Addresses stay pointers: of integers the compiler
// would not know that they are in global memory.)
__device__ __forceinline__ uint32_t phase_of(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & 15;
}

// By which an address exceeds a multiple of `bytes`, a power of two.
template <int bytes>
__device__ __forceinline__ uint32_t phase_of(const void* address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & (bytes - 1);
}

// Bytes `shift` to `shift` + 3 of the 8 in low and high; 0 <= shift < 4.
__device__ __forceinline__ uint32_t shift_bytes(uint32_t low, uint32_t high, uint32_t shift) {
  return __funnelshift_r(low, high, 8 * shift);
}

// Bytes `shift` to `shift` + 15 of the 32 in low and high; 0 <= shift < 16.
__device__ __forceinline__ uint4 shift_bytes(const uint4& low, const uint4& high, uint32_t shift) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) {
      w[i] = w[i + 2];
    }
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      w[i] = w[i + 1];
    }
  }
  const uint32_t bits = (shift & 3) * 8;
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
          __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
}

// Sixteen bytes at an aligned address, of which those outside of `extent` are not read and come as 0. The
// addresses of elements, of `unit` bytes, are multiples of `unit`.
template <int unit>
__device__ __forceinline__ uint4 load_granule(const char* address, const Extent& extent) {
  if (address >= extent.begin && address + 16 <= extent.end) {
    return *reinterpret_cast<const uint4*>(address);
  }
  uint32_t w[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 16; i += unit) {
    const char* const at = address + i;
    if (at >= extent.begin && at + unit <= extent.end) {
      uint32_t value;
      if constexpr (unit == 1) {
        value = *reinterpret_cast<const uint8_t*>(at);
      } else if constexpr (unit == 2) {
        value = *reinterpret_cast<const uint16_t*>(at);
      } else {
        value = *reinterpret_cast<const uint32_t*>(at);
      }
      w[i / 4] |= value << (i % 4 * 8);
    }
  }
  return {w[0], w[1], w[2], w[3]};
}

// Sixteen bytes at any address. Outside of `extent` they are anything.
template <int unit>
__device__ __forceinline__ uint4 load_window(const char* address, const Extent& extent) {
  const uint32_t shift = phase_of(address);
  const char* const aligned = address - shift;
  const uint4 low = load_granule<unit>(aligned, extent);
  if (shift == 0) {
    return low;
  }
  return shift_bytes(low, load_granule<unit>(aligned + 16, extent), shift);
}

// Whether all that load_window touches lies in `extent`.
__device__ __forceinline__ bool window_fits(const char* address, const Extent& extent) {
  const uint32_t shift = phase_of(address);
  const char* const aligned = address - shift;
  return aligned >= extent.begin && aligned + (shift == 0 ? 16 : 32) <= extent.end;
}

// `to` with the bytes from `first` up to `end` taken from `from`; 0 <= first <= end <= 16.
__device__ __forceinline__ uint4 merge_bytes(const uint4& to, const uint4& from, int first, int end) {
  const auto below = [](int n) -> uint32_t {  // the lowest n bytes of a word, for any n
    return n <= 0 ? 0 : n >= 4 ? 0xffffffffu : (1u << (8 * n)) - 1;
  };
  const auto merge = [&](uint32_t a, uint32_t b, int word) {
    const uint32_t mask = below(end - 4 * word) & ~below(first - 4 * word);
    return (a & ~mask) | (b & mask);
  };
  return {merge(to.x, from.x, 0), merge(to.y, from.y, 1), merge(to.z, from.z, 2), merge(to.w, from.w, 3)};
}

// Stores the bytes from `first` up to `end` of sixteen at an aligned address.
template <int unit>
__device__ __forceinline__ void store_granule(char* address, const uint4& value, int first, int end) {
  if (first == 0 && end == 16) {
    // A plain store, of which the stores below can be a part, becomes four of 4 bytes.
    __stwb(reinterpret_cast<uint4*>(address), value);
    return;
  }
  const uint32_t w[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 16; i += unit) {
    if (i >= first && i < end) {
      const uint32_t bits = w[i / 4] >> (i % 4 * 8);
      if constexpr (unit == 1) {
        *reinterpret_cast<uint8_t*>(address + i) = static_cast<uint8_t>(bits);
      } else if constexpr (unit == 2) {
        *reinterpret_cast<uint16_t*>(address + i) = static_cast<uint16_t>(bits);
      } else {
        *reinterpret_cast<uint32_t*>(address + i) = bits;
      }
    }
  }
}

}  // namespace aten_ext::cuda
