// Bridge between the ATen side of the fused Adam step on CUDA (fused_adam.cpp) and its kernel
// (fused_adam.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

enum AdamList { kExpAvg = kFirstState, kExpAvgSq, kMaxExpAvgSq, kAdamLists };  // the last with amsgrad

struct FusedAdamParams {
  const FlatTensors<kAdamLists>* tensors;  // [count], on the host
  int64_t count;
  ListLaunch launch;
  Dtype dtype;
  bool decoupled;  // AdamW's decay of the parameter itself, not Adam's addition to the gradient
  bool amsgrad;
  bool maximize;
  double lr, beta1, beta2, weight_decay, eps;
  const float* lr_pointer;  // [1] on the device, instead of lr; or nullptr
  const float* grad_scale;  // [1] on the device, or nullptr; gradients are then divided and written back
  const float* found_inf;   // [1] on the device, or nullptr; 1 means: change nothing
};

// Queues the step on `stream` of the current device: as few launches as the size of kernel arguments
// allows, no synchronisation, no allocation. Stops at the first launch that fails.
Launched launch_fused_adam(const FusedAdamParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
