// The shared memory whose size a launch gives.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

// 16-byte aligned; as many bytes as the launch asked for.
template <typename T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 aten_ext_dynamic_shared[];
  return reinterpret_cast<T*>(aten_ext_dynamic_shared);
}

}  // namespace aten_ext::cuda
