// Whether a CUDA graph is being captured. Here, because nothing outside this folder knows CUDA.
#include <c10/core/Device.h>

#ifdef ATEN_EXT_WITH_CUDA
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include "watch/shadow.h"

namespace aten_ext {

bool is_capturing([[maybe_unused]] at::Device device) {
#ifdef ATEN_EXT_WITH_CUDA
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device);
    return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  }
#endif
  return false;
}

}  // namespace aten_ext
