// The steps of a layer of _cudnn_rnn by Route::Recurrence: its projections, then one launch for all steps, or
// for one piece of them after the other.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/rnn/layer_call.h"

namespace aten_ext::cuda {

// cudaErrorNotSupported: cuBLASLt does not take a product.
cudaError_t run_recurrence(const LayerCall& layer);

}  // namespace aten_ext::cuda
