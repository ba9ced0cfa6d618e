// Tensor-core products of one warp: D[16,8] = A[16,K] * B[K,8] + D in fp32 (mma.sync, sm_80;
// before, they compile to a trap, so that one source serves a build for several architectures).
//
// Fragments, with g = lane / 4 and t = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16" and
// "...m16n8k8"):
//
//   16-bit, K = 16   a[0]: A[g][2t, 2t+1]    a[1]: A[g+8][2t, 2t+1]   a[2]: A[g][2t+8, 2t+9]   a[3]:
//   A[g+8][2t+8, 2t+9]
//                    b[0]: B[2t, 2t+1][g]    b[1]: B[2t+8, 2t+9][g]
//   TF32,   K = 8    a[0]: A[g][t]   a[1]: A[g+8][t]   a[2]: A[g][t+4]   a[3]: A[g+8][t+4]
//                    b[0]: B[t][g]   b[1]: B[t+4][g]
//   D                d[0, 1]: D[g][2t, 2t+1]   d[2, 3]: D[g+8][2t, 2t+1]
//
// The element with the smaller index is in the lower half of a register.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

template <typename T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4],
                                                            const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const uint32_t (&a)[4],
                                                     const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

// Operands are fp32 bits whose lower 13 bits are not looked at; round_to_tf32() rounds instead of cutting
// off.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

// Of 8 x 8 elements of 16 bits lane 4 g + t brings 2 t and 2 t + 1 of row g, and gets those of column g
// (movmatrix, sm_75). All lanes of a warp together.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t pair) {
  uint32_t transposed = 0;
#if __CUDA_ARCH__ >= 750
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
#else
  __trap();
#endif
  return transposed;
}

// To nearest, ties away from zero: 10 bits of mantissa stay.
__device__ __forceinline__ uint32_t round_to_tf32(float x) {
  uint32_t bits = 0;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
  __trap();
#endif
  return bits;
}

}  // namespace aten_ext::cuda
