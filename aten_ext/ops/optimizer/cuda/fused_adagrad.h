// Bridge between the ATen side of the fused Adagrad step on CUDA (fused_adagrad.cpp) and its kernel
// (fused_adagrad.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

enum AdagradList { kStateSum = kFirstState, kAdagradLists };

struct FusedAdagradParams {
  const FlatTensors<kAdagradLists>* tensors;  // [count], on the host
  int64_t count;
  ListLaunch launch;
  Dtype dtype;
  bool maximize;
  double lr, lr_decay, weight_decay, eps;
  const float* lr_pointer;  // [1] on the device, instead of lr; or nullptr
  const float* grad_scale;  // [1] on the device, or nullptr; gradients are then divided and written back
  const float* found_inf;   // [1] on the device, or nullptr; 1 means: change nothing
};

// Queues the step on `stream` of the current device: as few launches as the size of kernel arguments allows,
// no synchronisation, no allocation. Stops at the first launch that fails.
Launched launch_fused_adagrad(const FusedAdagradParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
