// Bridge between the ATen side of the linear layers on CUDA (run.cpp) and the kernel for few rows
// (few_rows.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/linear/epilogue.h"
#include "ops/linear/few_rows_plan.h"
#include "ops/linear/gemv_plan.h"

namespace aten_ext::cuda {

// out[M, N] = epilogue(beta * bias[M, N] + alpha * mat1[M, K] * mat2[K, N]). Strides are in elements.
struct LinearParams {
  const void* mat1;     // [M, K], k next to k
  const void* mat2;     // [K, N]; see mat2_is_transposed
  const void* bias;     // [M, N] with the strides below, 0 where it is broadcast; nullptr: none
  void* out;            // [M, N], n next to n
  int32_t M;            // 1 to few_rows::kMaxRows
  int32_t N, K;         // > 0
  int64_t mat1_stride;  // between rows
  int64_t mat2_stride;  // between rows of what lies in memory: [N, K] if transposed, else [K, N]
  int64_t bias_stride_m, bias_stride_n;
  int64_t out_stride;
  float alpha, beta;
  Dtype dtype;  // Float, BFloat16 or Half
  Epilogue epilogue;
  bool mat2_is_transposed;  // the view that nn.Linear makes of its weight
  bool vectors;             // rows of mat1 and mat2 begin at multiples of 16 bytes, and are as long
};

// Queues the product on `stream` of the current device as the plan says: one launch, no synchronisation, no
// allocation. The same plan gives the same bits on every run. Returns the first error.
cudaError_t launch_few_rows(const LinearParams& params, const few_rows::Plan& plan, cudaStream_t stream);

// The same by dot products (gemv.cuh): a plan of some rows.
cudaError_t launch_few_rows(const LinearParams& params, const gemv::Plan& plan, cudaStream_t stream);

// Whether a launch on `stream` would be part of a graph, behind something else than such a launch of this
// thread: it could not begin before that ends.
bool is_behind_another_kernel(cudaStream_t stream);

}  // namespace aten_ext::cuda
