// Stands in for PyTorch's: one device.
#pragma once

#include <c10/core/Device.h>

#include <c10/cuda/CUDAException.h>

namespace c10::cuda {
inline DeviceIndex current_device() {
  return 0;
}
inline DeviceIndex device_count() {
  return 1;
}
}  // namespace c10::cuda
