// Which GPUs can run what was built: the driver's answer, kept for each device.
#ifdef ATEN_EXT_WITH_CUDA

#include "gpu_support.h"

#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <atomic>

#include "cuda/gpu_support.h"

namespace aten_ext {
namespace {

enum class Support : uint8_t { Unknown, Yes, No };

// More devices than a machine has; a later one is taken to be like those that this was built for.
std::array<std::atomic<Support>, 64> known{};

Support ask(c10::Device device) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cuda::find_kernel_image();
  // Any other error is not about architectures, and will show itself where it belongs.
  return error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction ? Support::No
                                                                                             : Support::Yes;
}

}  // namespace

const char* decline_gpu(const char* reason, std::optional<c10::Device> device) {
  if (reason != nullptr || !device.has_value() || !device->is_cuda() ||
      static_cast<size_t>(device->index()) >= known.size()) {
    return reason;
  }
  std::atomic<Support>& entry = known[static_cast<size_t>(device->index())];
  Support support = entry.load(std::memory_order_relaxed);
  if (support == Support::Unknown) {  // two threads may both ask, and get the same answer
    support = ask(*device);
    entry.store(support, std::memory_order_relaxed);
  }
  return support == Support::No ? "GPU that the kernels were not built for" : nullptr;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
