#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/cudnn_handle.h"

#include <cstdint>

namespace aten_ext::cuda {

void make_cudnn_handle(c10::Device device) {
  if (!device.is_cuda()) {
    return;  // a CPU that plays a GPU
  }
  thread_local uint64_t made = 0;  // a bit a device
  const uint64_t bit = uint64_t{1} << (static_cast<unsigned>(device.index()) % 64);
  if ((made & bit) == 0 && at::native::getCudnnHandle != nullptr) {
    (void)at::native::getCudnnHandle();
    made |= bit;
  }
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
