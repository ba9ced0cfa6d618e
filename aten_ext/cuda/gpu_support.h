// Bridge between gpu_support.cpp and the kernel that it asks about (gpu_support.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

namespace aten_ext::cuda {

// Looks for code that the current device can run. cudaErrorNoKernelImageForDevice if there is none. Launches
// nothing.
cudaError_t find_kernel_image();

}  // namespace aten_ext::cuda
