// Whether the kernels of this build run on a GPU at all. The generated entries at CUDA ask after decline().
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace aten_ext {

// `reason` if there is one; otherwise nullptr, or the reason why upstream must run: the library holds neither
// machine code nor PTX for this GPU, which may be older than all it was built for (TORCH_CUDA_ARCH_LIST).
// Asks the driver once a device. No device and meta tensors are for others to judge.
const char* decline_gpu(const char* reason, std::optional<c10::Device> device);

}  // namespace aten_ext
