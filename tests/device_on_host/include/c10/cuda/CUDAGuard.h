// Stands in for PyTorch's: there is one device, the CPU, so there is nothing to guard.
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include <c10/cuda/CUDAStream.h>

namespace c10::cuda {

struct CUDAGuard {
  explicit CUDAGuard(Device /*device*/) {}
  explicit CUDAGuard(DeviceIndex /*device*/) {}
  CUDAGuard(const CUDAGuard&) = delete;
};
struct OptionalCUDAGuard {
  explicit OptionalCUDAGuard(std::optional<Device> /*device*/ = std::nullopt) {}
  OptionalCUDAGuard(const OptionalCUDAGuard&) = delete;
};

}  // namespace c10::cuda

namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::OptionalCUDAGuard;
}  // namespace at::cuda
