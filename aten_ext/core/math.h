// Integer arithmetic that host and device share. Standard library only.
#pragma once

#ifdef __CUDACC__
#define ATEN_EXT_HOST_DEVICE __host__ __device__
#else
#define ATEN_EXT_HOST_DEVICE
#endif

namespace aten_ext {

// a / b rounded up; a >= 0, b > 0.
template <typename A, typename B>
ATEN_EXT_HOST_DEVICE constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

// a rounded up to a multiple of b; a >= 0, b > 0.
template <typename A, typename B>
ATEN_EXT_HOST_DEVICE constexpr auto round_up(A a, B b) {
  return ceil_div(a, b) * b;
}

}  // namespace aten_ext
