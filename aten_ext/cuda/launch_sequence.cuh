// Several launches for one list, which need not wait for one another. Host code.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernel_arguments.cuh"

namespace aten_ext::cuda {

// One launch after the other, of kernels that each call launch_dependents() first and
// wait_for_previous_launches() last and do not depend on one another: all but the first may overlap with the
// one before them (sm_90).
class LaunchSequence {
 public:
  explicit LaunchSequence(cudaStream_t stream) : stream_(stream) {}

  template <typename Args>
  cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args) {
    cudaLaunchAttribute overlaps{};
    overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlaps.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = stream_;
    config.attrs = &overlaps;
    if (!first_) {
      if (overlap_ < 0) {
        int device = 0;
        int major = 0;
        cudaError_t error = cudaGetDevice(&device);
        if (error == cudaSuccess) {
          error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        }
        if (error != cudaSuccess) {
          return error;
        }
        overlap_ = major >= 9 ? 1 : 0;
      }
      config.numAttrs = overlap_;
    }
    first_ = false;
    return cudaLaunchKernelEx(&config, kernel, args);
  }

 private:
  cudaStream_t stream_;
  bool first_ = true;
  int overlap_ = -1;  // not asked yet
};

}  // namespace aten_ext::cuda
