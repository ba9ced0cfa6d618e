// What the weights of a GRU layer's input make of a sequence, or of some of its steps, before the recurrence.
#pragma once

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/math.h"
#include "ops/rnn/plan.h"

namespace aten_ext::cuda {

// Of each direction: rows [n, k] times w [m, k] transposed -> [n, m], in fp32 whatever the dtype: rounding a
// projection to 16 bits before the gates see it costs accuracy, and an fp32 result nothing that counts. All
// contiguous on the current device, of one dtype; n, m, k > 0 and below 2^31.
struct InputProjection {
  at::Tensor rows[2];  // the same memory where both directions read the same steps
  at::Tensor w[2];
  int directions;
  int64_t n_of_all;     // rows of the whole sequence
  int64_t rows_stride;  // from rows[0] to rows[1] in elements, a multiple of 16 bytes; 0: anywhere
  // TF32 whatever PyTorch allows its own products: cuDNN has a setting of its own,
  // torch.backends.cudnn.allow_tf32, which PyTorch turns on, while torch.backends.cuda.matmul.allow_tf32 is
  // off.
  Projection how;
};

// Elements of fp32 that results of [n, m] take, each beginning at a multiple of 256 bytes.
inline int64_t projection_elements(int64_t n, int64_t m, int directions) {
  return directions * round_up<int64_t>(n * m, 64);
}

// Writes to `memory`, so many elements, and says where each direction's result is. cudaErrorNotSupported:
// cuBLASLt does not take it.
cudaError_t project_input(const InputProjection& input, const at::Tensor& memory, const float* (&results)[2],
                          cudaStream_t stream);

}  // namespace aten_ext::cuda
