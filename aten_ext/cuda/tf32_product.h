// One matrix product of fp32 tensors in TF32, whatever PyTorch allows its own: cuDNN has a setting of its
// own, torch.backends.cudnn.allow_tf32, which PyTorch turns on, while torch.backends.cuda.matmul.allow_tf32
// is off.
#pragma once

#include <ATen/core/Tensor.h>

namespace aten_ext::cuda {

// rows [n, k] times w [m, k] transposed -> [n, m]. Both contiguous fp32 on the current device, n, m, k > 0
// and below 2^31.
at::Tensor tf32_product(const at::Tensor& rows, const at::Tensor& w);

}  // namespace aten_ext::cuda
