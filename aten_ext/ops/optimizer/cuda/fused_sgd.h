// Bridge between the ATen side of the fused SGD step on CUDA (fused_sgd.cpp) and its kernel (fused_sgd.cu).
// No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

enum SgdList { kMomentumBuffer = kFirstState, kSgdLists };  // the last with momentum

struct FusedSgdParams {
  const FlatTensors<kSgdLists>* tensors;  // [count], on the host
  int64_t count;
  ListLaunch launch;
  Dtype dtype;
  bool nesterov;
  bool maximize;
  bool is_first_step;  // momentum buffers are written without being used
  double weight_decay, momentum, lr, dampening;
  const float* lr_pointer;  // [1] on the device, instead of lr; or nullptr
  const float* grad_scale;  // [1] on the device, or nullptr; gradients are then divided and written back
  const float* found_inf;   // [1] on the device, or nullptr; 1 means: change nothing
};

// Queues the step on `stream` of the current device: as few launches as the size of kernel arguments allows,
// no synchronisation, no allocation. Stops at the first launch that fails.
Launched launch_fused_sgd(const FusedSgdParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
