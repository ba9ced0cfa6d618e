// Sums over the lanes of a warp, of several values at once.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

// Add up `value` over the team: afterwards value[0] of its lane l is the sum of pair l / (kTeam / kPairs).
template <int kTeam, int kPairs>
__device__ __forceinline__ void gru_add_up(float (&value)[kPairs][3], int lane) {
  static_assert((kPairs & (kPairs - 1)) == 0 && kPairs <= kTeam, "a power of two");
#pragma unroll
  for (int width = kTeam / 2, pairs = kPairs; width > 0; width /= 2, pairs /= 2) {
    if (pairs > 1) {
      const bool upper = (lane & width) != 0;
#pragma unroll
      for (int i = 0; i < kPairs / 2; ++i) {
        if (i < pairs / 2) {
#pragma unroll
          for (int gate = 0; gate < 3; ++gate) {
            const float low = value[i][gate];
            const float high = value[i + pairs / 2][gate];
            value[i][gate] = (upper ? high : low) + __shfl_xor_sync(0xffffffff, upper ? low : high, width);
          }
        }
      }
    } else {
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        value[0][gate] += __shfl_xor_sync(0xffffffff, value[0][gate], width);
      }
    }
  }
}

}  // namespace aten_ext::cuda
