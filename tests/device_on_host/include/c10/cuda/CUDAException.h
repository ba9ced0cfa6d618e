// Stands in for PyTorch's.
#pragma once

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#define C10_CUDA_CHECK(expression)                                                  \
  do {                                                                              \
    const cudaError_t error_ = (expression);                                        \
    TORCH_CHECK(error_ == cudaSuccess, "CUDA error: ", cudaGetErrorString(error_)); \
  } while (false)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
