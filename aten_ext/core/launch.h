// What every launch of a kernel needs on the host. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace aten_ext::cuda {

// Whether an error says that the device does not take a launch, and nothing worse. The runtime remembers the
// last error: it is taken back, so that nobody else stumbles over it.
inline bool is_refusal(cudaError_t error) {
  if (error != cudaErrorInvalidValue && error != cudaErrorInvalidConfiguration &&
      error != cudaErrorNotSupported && error != cudaErrorInvalidClusterSize &&
      error != cudaErrorCooperativeLaunchTooLarge && error != cudaErrorNoKernelImageForDevice &&
      error != cudaErrorLaunchOutOfResources) {
    return false;
  }
  (void)cudaGetLastError();
  return true;
}

// Lets a kernel take all the dynamic shared memory that a block may have, and clusters of more than 8 blocks;
// `prefer_smem`: all of a multiprocessor's L1 becomes shared memory.
// These are attributes of the kernel on a device, not of a launch: they are set once, before the kernel's
// first launch there, and never lowered, because other threads launch the same kernel.
class KernelAttributes {
 public:
  template <typename... Arguments>
  cudaError_t allow(void (*kernel)(Arguments...), bool large_clusters = false, bool prefer_smem = false) {
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error != cudaSuccess) {
      return error;
    }
    std::atomic<bool>* const done = device < kDevices ? &done_[device] : nullptr;
    if (done != nullptr && done->load(std::memory_order_acquire)) {
      return cudaSuccess;
    }
    int most = 0;
    cudaFuncAttributes attributes{};
    error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) {
      error = cudaFuncGetAttributes(&attributes, kernel);
    }
    if (error == cudaSuccess) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   most - static_cast<int>(attributes.sharedSizeBytes));
    }
    if (error == cudaSuccess && large_clusters) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    }
    if (error == cudaSuccess && prefer_smem) {
      error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
    }
    if (error == cudaSuccess && done != nullptr) {  // after an error the next launch asks again
      done->store(true, std::memory_order_release);
    }
    return error;
  }

 private:
  static constexpr int kDevices = 64;  // on further ones they are set at each launch
  std::atomic<bool> done_[kDevices] = {};
};

}  // namespace aten_ext::cuda
