// Stands in for PyTorch's: what the overrides ask the context for.
#pragma once

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstddef>
#include <vector>

#include "../../../runtime.h"

namespace at::cuda {

inline const cudaDeviceProp* getDeviceProperties(c10::DeviceIndex /*device*/) {
  static thread_local cudaDeviceProp properties;
  properties = {};
  properties.major = device_on_host::device().compute_major;
  properties.minor = device_on_host::device().compute_minor;
  properties.multiProcessorCount = device_on_host::device().multiprocessors;
  return &properties;
}
inline void* getCurrentCUDABlasLtHandle() {
  ++device_on_host::device().blas_handles;
  return nullptr;
}
inline size_t getCUDABlasLtWorkspaceSize() {
  return size_t{32} << 20;
}
inline void* getCUDABlasLtWorkspace() {
  static thread_local std::vector<char> memory(getCUDABlasLtWorkspaceSize());
  return memory.data();
}

}  // namespace at::cuda
