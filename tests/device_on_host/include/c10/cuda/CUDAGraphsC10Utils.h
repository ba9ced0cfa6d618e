// Stands in for PyTorch's: nothing is captured.
#pragma once

#include <cuda_runtime_api.h>

namespace c10::cuda {

struct CUDAStreamCaptureModeGuard {
  explicit CUDAStreamCaptureModeGuard(cudaStreamCaptureMode /*desired*/) {}
  CUDAStreamCaptureModeGuard(const CUDAStreamCaptureModeGuard&) = delete;
  ~CUDAStreamCaptureModeGuard() {}  // NOLINT(modernize-use-equals-default)
};

}  // namespace c10::cuda
