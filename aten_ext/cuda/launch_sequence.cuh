// Several launches for one list, which need not wait for one another. Host code.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "cuda/kernel_arguments.cuh"

namespace aten_ext::cuda {

// Whether a kernel's launches after a list's first may overlap with the one before, on each device. They may
// where the code that runs there waits at its end, which it does when it was compiled for sm_90 or newer. The
// device's own capability does not say: it may run older PTX, compiled for it at load, which waits for
// nothing.
class OverlapAllowed {
 public:
  template <typename Arguments>
  cudaError_t operator()(void (*kernel)(Arguments), bool& allowed) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
      return error;
    }
    std::atomic<int>* ptx_version = device < kDevices ? &ptx_version_[device] : nullptr;
    int version = ptx_version != nullptr ? ptx_version->load(std::memory_order_relaxed) : 0;
    if (version == 0) {
      cudaFuncAttributes attributes{};
      if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
        return error;
      }
      version = attributes.ptxVersion;
      if (ptx_version != nullptr) {
        ptx_version->store(version, std::memory_order_relaxed);
      }
    }
    allowed = version >= 90;
    return cudaSuccess;
  }

 private:
  static constexpr int kDevices = 64;            // on further ones it is asked each time
  std::atomic<int> ptx_version_[kDevices] = {};  // 0: not asked yet
};

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
      static OverlapAllowed overlap_allowed;
      bool overlap = false;
      if (const cudaError_t error = overlap_allowed(kernel, overlap); error != cudaSuccess) {
        return error;
      }
      config.numAttrs = overlap ? 1 : 0;
    }
    first_ = false;
    return cudaLaunchKernelEx(&config, kernel, args);
  }

 private:
  cudaStream_t stream_;
  bool first_ = true;
};

}  // namespace aten_ext::cuda
