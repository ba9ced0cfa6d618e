// Twin of aten_ext/ops/rnn/fast_math.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace aten_ext::cuda {

inline float approximate_exp2(float x) {
  return std::exp2(x);
}
inline float approximate_reciprocal(float x) {
  return 1.0f / x;
}

}  // namespace aten_ext::cuda
