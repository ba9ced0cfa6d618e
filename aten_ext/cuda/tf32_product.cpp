// The compute type belongs to the one call: neither the handle's mode nor a setting of PyTorch is changed, so
// there is nothing to put back and nothing that another thread could see. The handle is PyTorch's for this
// thread and stream, with its workspace: safe under graph capture.
#include "cuda/tf32_product.h"

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/Exceptions.h>
#include <ATen/ops/empty.h>

namespace aten_ext::cuda {

at::Tensor tf32_product(const at::Tensor& rows, const at::Tensor& w) {
  const at::Tensor result = at::empty({rows.size(0), w.size(0)}, rows.options());
  const auto n = static_cast<int>(rows.size(0));
  const auto m = static_cast<int>(w.size(0));
  const auto k = static_cast<int>(rows.size(1));
  const float one = 1.0f;
  const float zero = 0.0f;
  // cuBLAS has columns where we have rows: its [m, n] is w times rows transposed.
  TORCH_CUDABLAS_CHECK(cublasGemmEx(
      at::cuda::getCurrentCUDABlasHandle(), CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one,
      w.const_data_ptr<float>(), CUDA_R_32F, k, rows.const_data_ptr<float>(), CUDA_R_32F, k, &zero,
      result.mutable_data_ptr<float>(), CUDA_R_32F, m, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT));
  return result;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
