// Bridge between gpu_support.cpp and the kernel that it asks about (kernel_image.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

namespace aten_ext::cuda {

// Looks for code that the current device can run, and says which compute capability, times 10, its PTX was
// compiled for. cudaErrorNoKernelImageForDevice if there is none. Launches nothing.
cudaError_t find_kernel_image(int& ptx_version);

}  // namespace aten_ext::cuda
