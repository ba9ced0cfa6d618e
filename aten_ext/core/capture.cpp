#include "core/capture.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace aten_ext {
namespace {

thread_local bool pretended = false;

}  // namespace

bool is_capturing(c10::Device device) {
#ifdef ATEN_EXT_WITH_CUDA
  if (device.is_cuda()) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device.index()), &status) != cudaSuccess) {
      (void)cudaGetLastError();  // a legacy stream beside one that is captured: not part of that graph
    }
    return status != cudaStreamCaptureStatusNone;
  }
#endif
  return device.is_meta() && pretended;
}

void pretend_capture(bool capturing) {
  pretended = capturing;
}

}  // namespace aten_ext
