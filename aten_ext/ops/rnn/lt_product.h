// Products of a recurrent layer through cuBLASLt, by what their arguments say alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

// Of each of `count` matrices w[i] [m, k], w_stride elements apart: rows [n, k] times w[i] transposed, to
// to[i] [n, m], n * m elements apart, in fp32. Everything is contiguous on the current device.
struct LtProduct {
  const void* rows;
  const void* w;
  float* to;
  int64_t m, n, k;
  int64_t n_of_all;  // rows of the product that this one is a part of: its algorithm is that one's
  int64_t count;
  int64_t w_stride;
  Dtype dtype;  // of rows and w: Float, Half or BFloat16
  bool tf32;    // Float: multiplied in TF32
};

// False: cuBLASLt has no algorithm for it, or did not take the one it chose.
bool run_lt_product(const LtProduct& product, cudaStream_t stream);

}  // namespace aten_ext::cuda
