// cuBLASLt, as upstream asks it, with an answer that is remembered: lt.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include "ops/linear/call.h"
#include "ops/linear/lt.h"

namespace aten_ext {

// False: cuBLASLt has no algorithm for it, or did not take the one it chose, and nothing was written. The
// current device is that of the operands. `out` is contiguous; call.bias is a vector.
bool run_lt(const LinearCall& call, const cuda::LtKey& key, float alpha, const at::Tensor& out);

}  // namespace aten_ext
