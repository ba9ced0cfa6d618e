// Bridge to the copy of weights into one buffer (pack_weights.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

namespace aten_ext::cuda {

struct WeightPart {
  const void* from;  // nullptr: zeros
  int64_t bytes;
};

// One part behind the other, to memory that the launch before this one does not touch. `overlaps`: beside it.
cudaError_t launch_pack_weights(const std::vector<WeightPart>& parts, void* to, bool overlaps,
                                cudaStream_t stream);

}  // namespace aten_ext::cuda
