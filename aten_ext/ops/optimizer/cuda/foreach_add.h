// Bridge between the ATen side of _foreach_add_.Scalar on CUDA (foreach_add.cpp) and its kernel
// (foreach_add.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

struct ForeachAddParams {
  float* const* numbers;  // [count] on the host, each [1] on the device
  int64_t count;
  float value;
  int argument_bytes;  // that the GPU takes in a kernel's arguments
};

// Queues the additions on `stream` of the current device: as few launches as the size of kernel arguments
// allows, no synchronisation, no allocation. Stops at the first launch that fails.
Launched launch_foreach_add(const ForeachAddParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
