// Twin of aten_ext/device/mma.cuh: the same fragments, products and sums in fp32 one after the other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <new>

namespace aten_ext::cuda {
namespace mma_on_host {

template <typename T>
float half_of(uint32_t bits, int which) {
  const auto raw = static_cast<uint16_t>(bits >> (16 * which));
  T value;
  memcpy(&value, &raw, sizeof(value));
  return static_cast<float>(value);
}

inline float tf32(uint32_t bits) {
  return __uint_as_float(bits & 0xffffe000u);
}

// A third of an emulated layer's time, so worth more than the -O1 of the kernels.
#pragma GCC push_options
#pragma GCC optimize("O2")
// Each lane brings the numbers of four registers of A and of two of B, `N` of each.
template <unsigned N>
void multiply(float (&d)[4], const float (&mine)[6 * N]) {
  const char (*slots)[device_on_host::kSlotBytes] = device_on_host::exchange(0xffffffff, mine, sizeof(mine));
  const auto numbers = [slots](unsigned lane) {
    return std::launder(reinterpret_cast<const float*>(slots[lane]));
  };
  const unsigned g = device_on_host::current->lane / 4;
  const unsigned t = device_on_host::current->lane % 4;
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      const float* const row = numbers(g * 4 + lane) + half * 2 * N;
      const float* const column = numbers(2 * t * 4 + lane) + (4 + half) * N;
      const float* const next_column = numbers((2 * t + 1) * 4 + lane) + (4 + half) * N;
      for (unsigned i = 0; i < N; ++i) {
        d[0] += row[i] * column[i];
        d[1] += row[i] * next_column[i];
        d[2] += row[N + i] * column[i];
        d[3] += row[N + i] * next_column[i];
      }
    }
  }
}
#pragma GCC pop_options

}  // namespace mma_on_host

template <typename T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  device_on_host::require_code(80);
  float mine[12];
  for (int i = 0; i < 12; ++i) {
    mine[i] = mma_on_host::half_of<T>(i < 8 ? a[i / 2] : b[i / 2 - 4], i % 2);
  }
  mma_on_host::multiply<2>(d, mine);
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  device_on_host::require_code(80);
  float mine[6];
  for (int i = 0; i < 6; ++i) {
    mine[i] = mma_on_host::tf32(i < 4 ? a[i] : b[i - 4]);
  }
  mma_on_host::multiply<1>(d, mine);
}

inline uint32_t round_to_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace aten_ext::cuda
