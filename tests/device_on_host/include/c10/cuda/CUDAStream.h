// Stands in for PyTorch's: one stream, which is nothing.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace c10::cuda {

struct CUDAStream {
  cudaStream_t stream() const {
    return nullptr;
  }
  operator cudaStream_t() const {  // NOLINT: implicit, as PyTorch's
    return nullptr;
  }
};
inline CUDAStream getCurrentCUDAStream(DeviceIndex /*device*/ = -1) {
  return {};
}

}  // namespace c10::cuda

namespace at::cuda {
using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;
}  // namespace at::cuda
