// Products of a recurrent layer through cuBLASLt, by what their arguments say alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

// Of each of `count` matrices w[i] [m, k], w_stride elements apart: rows [n, k] times w[i] transposed, to
// to[i] [n, m]. Everything is on the current device, and contiguous unless the fields from `rows_by_column`
// on say otherwise; results of a batch are then n * m elements apart.
struct LtProduct {
  const void* rows;
  const void* w;
  void* to;  // fp32
  int64_t m, n, k;
  int64_t n_of_all;  // rows of the product that this one is a part of: its algorithm is that one's
  int64_t count;
  int64_t w_stride;
  Dtype dtype;  // of rows and w: Float, Half or BFloat16
  bool tf32;    // Float: multiplied in TF32

  bool rows_by_column = false;  // `rows` lies as [k, n]
  bool w_by_column = false;     // w lies as [k, m]
  bool in_dtype = false;        // the result is of `dtype` too, rounded once
  bool adds = false;            // to what `to` has
  int64_t rows_stride = 0;      // between the members of a batch; 0: all multiply the same
  int64_t to_stride = 0;        // 0: n * m
  int64_t rows_length = 0;      // from one line of `rows` to the next; 0: no element lies between them
};

// False: cuBLASLt has no algorithm for it, or did not take the one it chose.
bool run_lt_product(const LtProduct& product, cudaStream_t stream);

}  // namespace aten_ext::cuda
