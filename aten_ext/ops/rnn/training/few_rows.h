// Bridge to the products over few rows, steps times batch (few_rows.cu), of a backward and of a layer's
// input: fewer and shorter launches than a library's, all in fp32 multiply-adds. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

// Tensors of the dtype, contiguous. Up to four of a kind in one launch: of two directions the input's and the
// state's.
constexpr int kFewRowsItems = 4;

// rows[0] w[0]^T + rows[1] w[1]^T: [n, m] of fp32.
struct GateProduct {
  const void* rows[2];  // [n, k]; the second may be nullptr
  const void* w[2];     // [m, k]
  int64_t k[2];
  float* to;
  bool fours[2];  // filled in by the launch: whether columns may be read by fours
};
struct GateProducts {
  GateProduct item[kFewRowsItems];
  int count;
  Dtype dtype;
  int n;
  int64_t m;
};
cudaError_t launch_gate_products(const GateProducts& params, cudaStream_t stream);

// d^T x: [gates, columns]; and the sums of d's columns.
struct WeightGradient {
  const void* d;  // [n, gates]
  const void* x;  // [n, columns]
  void* to;       // dtype
  void* of_bias;  // [gates], dtype; nullptr: not wanted
  int64_t columns;
};
struct WeightGradients {
  WeightGradient item[kFewRowsItems];
  int count;
  Dtype dtype;
  int n;
  int64_t gates;
};
cudaError_t launch_weight_gradients(const WeightGradients& params, cudaStream_t stream);

// d[0] w[0] + d[1] w[1] + added: [n, columns]. Of an input that was dropped each product is masked.
struct InputGradient {
  const void* d[2];        // [n, gates]; the second may be nullptr
  const void* w[2];        // [gates, columns]
  const uint8_t* kept[2];  // bits (dropout.h), of both products or of none
  const float* added;      // [n, columns]; nullptr: zero
  void* to;                // dtype; may be `added`
  int64_t columns;
};
struct InputGradients {
  InputGradient item[kFewRowsItems];
  int count;
  Dtype dtype;
  int n;
  int64_t gates;
  float kept_scale;
};
cudaError_t launch_input_gradients(const InputGradients& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
