// Whether the kernels of this build run on a GPU at all. The generated entries at CUDA ask after decline().
#pragma once

#include <c10/core/Device.h>

#include <optional>

namespace aten_ext {

// `reason` if there is one; otherwise nullptr, or the reason why upstream must run: the library holds neither
// machine code nor PTX for this GPU, which may be older than all it was built for (TORCH_CUDA_ARCH_LIST).
// Asks the driver once a device. No device and meta tensors are for others to judge.
const char* decline_gpu(const char* reason, std::optional<c10::Device> device);

// The compute capability, times 10, that the code which runs on the CUDA device was compiled for: 90 and more
// can do what sm_90 brought. A newer GPU may run older PTX, compiled for it at load. 0 if there is no code
// for it. Asks the driver once a device.
int code_version(c10::Device device);

}  // namespace aten_ext
