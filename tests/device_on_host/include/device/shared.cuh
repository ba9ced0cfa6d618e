// Twin of aten_ext/device/shared.cuh.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

template <typename T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(device_on_host::current->block->dynamic_shared);
}

}  // namespace aten_ext::cuda
