// Where upstream is faster than the kernel for layers of few rows (linear.cu). No ATen and no CUDA.
//
// Measured on an H200 against torch 2.11, us on the GPU, weights read from memory. Where the kernel is the
// faster one, it is by 5 % (bf16, 8 rows, K = 4096 and N = 11008) to 13 times (fp32, 16 rows, K = 3072 and N
// = 768). Where they are equal or nothing between two measured shapes was measured, upstream stays.
//
//   fp32, 1 row        K = 768,  N = 3072, [K, N]   5.0, the kernel  4.5
//                      4096 x 4096, [K, N]         18.2             17.3 to 18.3
//                      K = 3072, N = 768            5.1              4.9
//                      K = 16384, N = 64            6.0              5.2
//                      K = 768,  N = 50257         38.8             45
//   fp32, 64 rows, no  K = 768,  N = 3072           15.3             10.9
//   bias (cuBLAS)      K = 3072, N = 768           19.8             12.1
//                      4096 x 4096                 62.0             50.6
//                      K = 4096, N = 11008        136              151
//   bf16, 16 rows      K = 4096, N = 11008         25.0             25.7
//   bf16, 32 rows      64 x 64                      2.4              1.7, without a bias about equal
//                      K = 1280, N = 8000           8.2, 7.8         7.6; the second without a bias
//                      4096 x 4096                 11.9             11.4
//                      K = 4096, N = 11008         25.4             30.5
//   bf16, 63 rows      1024 x 1024                  5.0              4.6
//   bf16, 64 rows      64 x 64                      2.4              2.5
//                      K = 768,  N = 3072           5.2, 4.7         4.3
//                      K = 768,  N = 3072, [K, N]   5.0              4.8
//                      K = 1280, N = 8000           8.6              9.4
//                      4096 x 4096                 12.3             14.0
//                      K = 4096, N = 11008         26.9             37.7
//                      K = 16384, N = 64            7.2              8.6
//
// With few rows mat1 costs nothing, and all is reading the weight. With 64 rows of 16 bits each tile of
// columns reads mat1 again from the L2, twice as many bytes as the weight's: more than the L2 gives in that
// time.
#pragma once

#include <cstdint>

namespace aten_ext {

// out[m, n] = mat1[m, k] * mat2[k, n]; `transposed`: mat2 is [n, k] in memory. m from 1 to 64.
constexpr bool upstream_multiplies_faster(int64_t m, int64_t n, int64_t k, bool is_float, bool transposed,
                                          bool has_bias) {
  if (is_float && m > 32 && !has_bias) {
    // A GRU cell with 1024 x 3072 was slower as a whole. Of larger layers one size was faster.
    return n * k > int64_t{768} * 3072 && n * k != int64_t{4096} * 4096;
  }
  if (is_float) {
    return m == 1 && (n > 16384 || (!transposed && n * k > int64_t{768} * 3072));
  }
  const int64_t weight = n * k;
  if (m > 32) {
    const bool is_deep = n >= 768 && n <= 1024 && k >= 2048 && k <= 3072;
    const bool is_wide = n >= 2048 && n <= 3072 && k >= 512 && k <= 768;
    return !is_deep && !is_wide;
  }
  if (m > 16 && weight < 1 << 16) {
    return true;
  }
  // Rows of the result that are no whole vectors of 16 bytes are slow upstream.
  const int64_t most = m <= 8 ? INT64_MAX : m <= 16 || (has_bias && transposed) ? 1 << 24 : 1 << 22;
  return n % 8 == 0 && weight > most;
}

}  // namespace aten_ext
