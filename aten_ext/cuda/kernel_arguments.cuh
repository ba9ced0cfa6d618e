// How much a kernel takes in its arguments: 4 KB always; 32,764 bytes with a driver for CUDA 12.1 or newer,
// on sm_70 or newer (which is every architecture that this is built for). They reach the device as a copy in
// constant memory, made by the launch itself: nothing to allocate, nothing to wait for, nothing that a CUDA
// graph could not replay. A launch costs more with more to copy, so short lists take the small size.
#pragma once

#include <cuda_runtime_api.h>

namespace aten_ext::cuda {

constexpr int kSmallArgumentBytes = 4096;
constexpr int kLargeArgumentBytes = 32764;

inline bool large_arguments_allowed() {
#if CUDART_VERSION >= 12010
  static const bool allowed = [] {
    int driver = 0;
    return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12010;
  }();
  return allowed;
#else
  return false;
#endif
}

}  // namespace aten_ext::cuda
