// Bridge to the copies around a backward (copies.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

// The states before all steps, in order of time: what a layer put out, one step later, and the initial state.
struct PreviousStates {
  const void* y;   // [steps, batch, directions * H], contiguous
  const void* h0;  // [directions, batch, H], contiguous
  void* to;        // [directions, steps, batch, H]
  Dtype dtype;
  int directions;
  int64_t steps, batch, hidden;
  bool overlaps;  // with the launch before it, which writes nothing of these
};
cudaError_t launch_previous_states(const PreviousStates& params, cudaStream_t stream);

// fp32 -> dtype, rounded.
cudaError_t launch_round(const float* from, void* to, int64_t count, Dtype dtype, cudaStream_t stream);

// dtype -> fp32.
cudaError_t launch_widen(const void* from, float* to, int64_t count, Dtype dtype, cudaStream_t stream);

}  // namespace aten_ext::cuda
