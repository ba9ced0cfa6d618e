// A kernel that does nothing, compiled for the same architectures as all others: a GPU that can load it can
// load them.
#include "cuda/kernel_image.h"

namespace aten_ext::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

cudaError_t find_kernel_image(int& ptx_version) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
  cudaGetLastError();  // the answer is not an error of anyone's
  ptx_version = attributes.ptxVersion;
  return error;
}

}  // namespace aten_ext::cuda
