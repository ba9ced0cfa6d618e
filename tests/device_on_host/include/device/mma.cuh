// Twin of aten_ext/device/mma.cuh: the same fragments, products and sums in fp32 one after the other.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <utility>

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

struct Fragments {
  uint32_t a[4], b[2];
};

// A[row][k] and B[k][column] out of the fragments of all lanes.
template <int K, typename A, typename B>
void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], A element_of_a, B element_of_b) {
  Fragments mine;
  memcpy(mine.a, a, sizeof(mine.a));
  memcpy(mine.b, b, sizeof(mine.b));
  const char (*slots)[device_on_host::kSlotBytes] = device_on_host::exchange(0xffffffff, &mine, sizeof(mine));
  const auto of_lane = [slots](int lane) {
    Fragments result;
    memcpy(&result, slots[lane], sizeof(result));
    return result;
  };
  const int g = static_cast<int>(device_on_host::current->lane) / 4;
  const int t = static_cast<int>(device_on_host::current->lane) % 4;
  float rows[2][K];
  float columns[2][K];
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < K; ++k) {
      rows[i][k] = element_of_a(of_lane, g + i * 8, k);
      columns[i][k] = element_of_b(of_lane, k, 2 * t + i);
    }
  }
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < K; ++k) {
      d[i] += rows[i / 2][k] * columns[i % 2][k];
    }
  }
}

}  // namespace mma_on_host

template <typename T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  device_on_host::require_code(80);
  mma_on_host::multiply<16>(
      d, a, b,
      [](auto of_lane, int row, int k) {
        return mma_on_host::half_of<T>(of_lane(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2], k % 2);
      },
      [](auto of_lane, int k, int column) {
        return mma_on_host::half_of<T>(of_lane(column * 4 + k % 8 / 2).b[k / 8], k % 2);
      });
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  device_on_host::require_code(80);
  mma_on_host::multiply<8>(
      d, a, b,
      [](auto of_lane, int row, int k) {
        return mma_on_host::tf32(of_lane(row % 8 * 4 + k % 4).a[row / 8 + k / 4 * 2]);
      },
      [](auto of_lane, int k, int column) {
        return mma_on_host::tf32(of_lane(column * 4 + k % 4).b[k / 4]);
      });
}

inline uint32_t round_to_tf32(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace aten_ext::cuda
