// Twin of aten_ext/device/mma.cuh: the same fragments, products and sums in fp32 one after the other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

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

// For every product of the tensor cores, so worth more than the -O1 of the kernels.
#pragma GCC push_options
#pragma GCC optimize("O2")
// Each lane brings the numbers of four registers of A and of two of B, `N` of each.
template <unsigned N>
void multiply(float (&d)[4], const float (&mine)[6 * N]) {
  const char (*slots)[device_on_host::kSlotBytes] = device_on_host::exchange(0xffffffff, mine, sizeof(mine));
  const unsigned g = device_on_host::current->lane / 4;
  const unsigned t = device_on_host::current->lane % 4;
  float sums[4] = {d[0], d[1], d[2], d[3]};
  for (unsigned half = 0; half < 2; ++half) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      float rows[2 * N];
      float columns[2][N];
      memcpy(rows, slots[g * 4 + lane] + half * sizeof(rows), sizeof(rows));
      for (unsigned j = 0; j < 2; ++j) {
        memcpy(columns[j], slots[(2 * t + j) * 4 + lane] + (4 + half) * sizeof(columns[j]),
               sizeof(columns[j]));
      }
      for (unsigned i = 0; i < N; ++i) {
        sums[0] += rows[i] * columns[0][i];
        sums[1] += rows[i] * columns[1][i];
        sums[2] += rows[N + i] * columns[0][i];
        sums[3] += rows[N + i] * columns[1][i];
      }
    }
  }
  memcpy(d, sums, sizeof(sums));
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

inline uint32_t transpose_8x8(uint32_t pair) {
  device_on_host::require_code(75);
  const char (*slots)[device_on_host::kSlotBytes] = device_on_host::exchange(0xffffffff, &pair, sizeof(pair));
  const unsigned g = device_on_host::current->lane / 4;
  const unsigned t = device_on_host::current->lane % 4;
  uint32_t transposed = 0;
  for (unsigned i = 0; i < 2; ++i) {
    uint32_t row = 0;
    memcpy(&row, slots[(2 * t + i) * 4 + g / 2], sizeof(row));
    transposed |= (row >> 16 * (g % 2) & 0xffff) << 16 * i;
  }
  return transposed;
}

inline uint32_t round_to_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace aten_ext::cuda
