// A measured cell of the crossover between upstream and the kernel for few rows. Standard library only.
#pragma once

#include <cstdint>

namespace aten_ext {

struct CrossoverCell {
  bool is_float;         // otherwise 16 bits
  int64_t m_from, m_to;  // rows of mat1
  int64_t n, k;          // of the weight that was measured
  float upstream, ours;  // us

  // Within a quarter of an octave of the weight that was measured, in either size.
  constexpr bool holds(int64_t rows, int64_t columns, int64_t depth, bool float32) const {
    return float32 == is_float && rows >= m_from && rows <= m_to && near(columns, n) && near(depth, k);
  }
  // By the margin that covers the noise.
  constexpr bool is_ours() const {
    return ours <= 0.98f * upstream;
  }

 private:
  static constexpr bool near(int64_t a, int64_t b) {
    return 16 * a <= 19 * b && 16 * b <= 19 * a;
  }
};

}  // namespace aten_ext
