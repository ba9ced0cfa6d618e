// The kernel for one row, or up to four (gemv.cuh), to those who launch it. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/linear/few_rows.h"
#include "ops/linear/gemv_plan.h"

namespace aten_ext::cuda {

// Queues the product on `stream` as the plan says; `overlap`: it may begin before the launch before has
// ended. Returns the first error.
cudaError_t launch_gemv(const LinearParams& params, const gemv::Plan& plan, bool overlap,
                        cudaStream_t stream);

}  // namespace aten_ext::cuda
