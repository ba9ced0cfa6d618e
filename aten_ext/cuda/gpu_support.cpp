// Which GPUs can run what was built: the driver's answer, kept for each device.
#ifdef ATEN_EXT_WITH_CUDA

#include "gpu_support.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>

#include "cuda/kernel_image.h"

namespace aten_ext {
namespace {

constexpr int kUnknown = -1;
constexpr int kNone = 0;

int ask(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  int version = kNone;
  const cudaError_t error = cuda::find_kernel_image(version);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return kNone;
  }
  // Any other error is not about architectures, and will show itself where it belongs.
  return error == cudaSuccess ? version : kUnknown;
}

// More devices than a machine has; a later one is asked about each time.
class Versions {
 public:
  Versions() {
    for (std::atomic<int>& version : known_) {
      version.store(kUnknown, std::memory_order_relaxed);
    }
  }
  int of(c10::Device device) {
    const auto index = static_cast<size_t>(device.index());
    if (index >= known_.size()) {
      return ask(device);
    }
    int version = known_[index].load(std::memory_order_relaxed);
    if (version == kUnknown) {  // two threads may both ask, and get the same answer
      version = ask(device);
      known_[index].store(version, std::memory_order_relaxed);  // an unknown one is asked about again
    }
    return version;
  }

 private:
  std::array<std::atomic<int>, 64> known_;
};

}  // namespace

int code_version(c10::Device device) {
  static Versions versions;
  const int version = versions.of(device);
  if (version == kUnknown) {
    const cudaDeviceProp* const properties = at::cuda::getDeviceProperties(device.index());
    return 10 * properties->major + properties->minor;
  }
  return version;
}

const char* decline_gpu(const char* reason, std::optional<c10::Device> device) {
  if (reason != nullptr || !device.has_value() || !device->is_cuda()) {
    return reason;
  }
  return code_version(*device) == kNone ? "GPU that the kernels were not built for" : nullptr;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
