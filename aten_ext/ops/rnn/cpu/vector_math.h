// Sigmoid and tanh of a vector of floats, within about 2 units in the last place, for files compiled for one
// instruction set. Upstream calls a library for each; inlined they cost a quarter, and at a hidden size of 64
// the gates are half of a step.
#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/macros/Macros.h>

namespace aten_ext::cpu::CPU_CAPABILITY {

using Vec = at::vec::Vectorized<float>;

// 2^n for whole numbers n in [-126, 127]; infinity for 128.
C10_ALWAYS_INLINE Vec power_of_two(const Vec& n) {
#if defined(CPU_CAPABILITY_AVX512)
  const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return Vec(_mm512_castsi512_ps(bits));
#else
  const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return Vec(_mm256_castsi256_ps(bits));
#endif
}

C10_ALWAYS_INLINE Vec nearest_integer(const Vec& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return Vec(_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  return Vec(_mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#endif
}

// e^x = 2^n (1 + rest), |rest| < 0.42: Cody and Waite's reduction, Cephes' polynomial.
struct Exponent {
  Vec n, rest;
};
C10_ALWAYS_INLINE Exponent reduced_exponent(const Vec& x) {
  const Vec n = nearest_integer(x * Vec(1.44269504088896341f));
  Vec r = at::vec::fmadd(n, Vec(-0.693359375f), x);
  r = at::vec::fmadd(n, Vec(2.12194440e-4f), r);
  Vec p = at::vec::fmadd(Vec(1.9875691500e-4f), r, Vec(1.3981999507e-3f));
  p = at::vec::fmadd(p, r, Vec(8.3334519073e-3f));
  p = at::vec::fmadd(p, r, Vec(4.1665795894e-2f));
  p = at::vec::fmadd(p, r, Vec(1.6666665459e-1f));
  p = at::vec::fmadd(p, r, Vec(5.0000001201e-1f));
  return {n, at::vec::fmadd(p * r, r, r)};
}

// 1 / (1 + e^-x). NaN stays; where e^-x is beyond float it is 0, as upstream's.
C10_ALWAYS_INLINE Vec sigmoid(const Vec& x) {
  const Vec one(1.0f);
  const Exponent e = reduced_exponent(at::vec::clamp(x.neg(), Vec(-80.0f), Vec(89.4f)));
  // Half of e^-x, because 2^128 is beyond float where 2^128 (1 + rest) need not be.
  const Vec half = (one + e.rest) * power_of_two(e.n - one);
  return one / (one + (half + half));
}

// tanh |x| = m / (m + 2) with m = e^2|x| - 1. NaN stays, and so does the sign of zero.
C10_ALWAYS_INLINE Vec tanh(const Vec& x) {
  const Vec sign = x & Vec(-0.0f);
  const Vec magnitude = x.abs();
  const Exponent e = reduced_exponent(at::vec::clamp_max(magnitude + magnitude, Vec(20.0f)));
  const Vec scale = power_of_two(e.n);
  const Vec m = at::vec::fmadd(e.rest, scale, scale - Vec(1.0f));
  return (m / (m + Vec(2.0f))) | sign;
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
