// The products of a linear layer on tensor cores, in fp32 sums: sum[m][n] += x[m][k] * w[n][k].
//
// The weight is the instruction's operand of 16 rows and x the one of 8 columns: with one row of x seven
// eighths of the tensor cores' work is thrown away, of which there is plenty, and with eight rows nothing.
//
// fp32 is not TF32: each number is the sum of three of bf16, which is exact (3 times 8 bits, the range of
// fp32),
//
//   x = x0 + x1 + x2, |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|
//   x w = x0 w0 + (x0 w1 + x1 w0) + (x0 w2 + x1 w1 + x2 w0) + 2^-23 |x w| at most, of either sign
//
// and products of bf16 are exact in fp32. Tensor cores cut sums off where fp32 rounds them to nearest, so no
// long sum is left to them: the products of 32 k are added up there, small ones first, and go to the running
// sum by an ordinary addition (Ootomo & Yokota 2022, arXiv:2203.03341). Six products at the rate of bf16 are
// twice as fast as fused multiply-adds. An infinity times a part that is zero is NaN here, and parts below
// bf16's smallest number, 2^-133, are lost: sums that are not finite, or very small, are formed again with
// multiply-adds (few_rows.cu).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/mma.cuh"
#include "device/vector.cuh"

namespace aten_ext::cuda {

// The bits of two bf16, the first in the lower half.
__device__ __forceinline__ uint32_t pack_bf16(float first, float second) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

// Two numbers as three pairs of bf16 each of which rounds what the ones before left.
__device__ __forceinline__ void split_pair(float first, float second, uint32_t& part0, uint32_t& part1,
                                           uint32_t& part2) {
  part0 = pack_bf16(first, second);
  first -= __uint_as_float(part0 << 16);
  second -= __uint_as_float(part0 & 0xffff0000u);
  part1 = pack_bf16(first, second);
  first -= __uint_as_float(part1 << 16);
  second -= __uint_as_float(part1 & 0xffff0000u);
  part2 = pack_bf16(first, second);
}

// The products of a warp's `steps` steps with `rows` rows of x, W as in weight.cuh. `load_x` gives the bits
// of the lane's 16 bytes of row 8 octet + lane / 4 in a step. fp32 splits `octets` times 8 rows at once: sums
// that do not wait for one another, for more registers.
template <typename T, typename W, int rows, int steps, int octets, typename LoadX>
__device__ __forceinline__ void multiply_accumulate(float (&sum)[rows / 8][4],
                                                    const uint32_t (&words)[steps][8], const LoadX& load_x) {
  if constexpr (std::is_same_v<T, float>) {
    uint32_t a[steps][3][4];
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        split_pair(W::element(words[step], i % 2, i / 2 * 2), W::element(words[step], i % 2, i / 2 * 2 + 1),
                   a[step][0][i], a[step][1][i], a[step][2][i]);
      }
    }
    constexpr int kOctets = rows / 8 < octets ? rows / 8 : octets;
    // With few rows the smallest six products and the other six too (16 rows, 768 x 3072: 5.4 us and
    // not 5.6); with more, two parts of each sum were slower.
    constexpr int kParts = rows <= 16 ? 2 : 1;
#pragma unroll
    for (int octet = 0; octet < rows / 8; octet += kOctets) {
      float part[kOctets][kParts][4] = {};
      uint32_t b[kOctets][steps][3][2];
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int step = 0; step < steps; ++step) {
          uint32_t bits[4];
          load_x(bits, step, octet + o);
          float q[4];
          memcpy(q, bits, sizeof(q));
          split_pair(q[0], q[1], b[o][step][0][0], b[o][step][1][0], b[o][step][2][0]);
          split_pair(q[2], q[3], b[o][step][0][1], b[o][step][1][1], b[o][step][2][1]);
        }
      }
#pragma unroll
      for (int order = 2; order >= 0; --order) {  // of the products, in powers of 2^-8
#pragma unroll
        for (int step = 0; step < steps; ++step) {
#pragma unroll
          for (int i = 0; i <= order; ++i) {
#pragma unroll
            for (int o = 0; o < kOctets; ++o) {
              mma_m16n8k16<__nv_bfloat16>(part[o][order == 2 ? kParts - 1 : 0], a[step][i],
                                          b[o][step][order - i]);
            }
          }
        }
      }
#pragma unroll
      for (int o = 0; o < kOctets; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sum[octet + o][i] += kParts == 1 ? part[o][0][i] : part[o][0][i] + part[o][kParts - 1][i];
        }
      }
    }
  } else {
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      uint32_t a[2][4];
      W::fragment(a[0], words[step], 0);
      W::fragment(a[1], words[step], 1);
#pragma unroll
      for (int octet = 0; octet < rows / 8; ++octet) {
        uint32_t q[4];
        load_x(q, step, octet);
        mma_m16n8k16<T>(sum[octet], a[0], {q[0], q[1]});
        mma_m16n8k16<T>(sum[octet], a[1], {q[2], q[3]});
      }
    }
  }
}

}  // namespace aten_ext::cuda
