// What the weights of a GRU layer's input make of a sequence, all steps before the first.
#pragma once

#include <ATen/core/Tensor.h>

namespace aten_ext::cuda {

// Of each direction: rows [n, k] times w [m, k] transposed -> [n, m], in fp32 whatever the dtype: rounding a
// projection to 16 bits before the gates see it costs accuracy, and an fp32 result nothing that counts. All
// contiguous on the current device, of one dtype; n, m, k > 0 and below 2^31.
//
// fp32 is multiplied in TF32 if `tf32`, whatever PyTorch allows its own products: cuDNN has a setting of its
// own, torch.backends.cudnn.allow_tf32, which PyTorch turns on, while torch.backends.cuda.matmul.allow_tf32
// is off.
void project_input(const at::Tensor& rows, const at::Tensor (&w)[2], int directions, bool tf32,
                   at::Tensor (&projections)[2]);

}  // namespace aten_ext::cuda
