// Sums over the lanes of a warp, of several values at once.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

// Sums `value` over a team of kTeam lanes. Afterwards value[0] of the team's lane l is the sum of item
// l / (kTeam / kItems).
//
// In each round a lane hands half of its sums to the lane `width` away and takes that lane's part of the
// other half. So kItems items of kGates values cost kGates * (kItems - 1 + log2(kTeam / kItems)) shuffles
// instead of kGates * kItems * log2(kTeam).
template <int kTeam, int kItems, int kGates>
__device__ __forceinline__ void reduce_over_team(float (&value)[kItems][kGates], int lane) {
  static_assert((kItems & (kItems - 1)) == 0 && kItems <= kTeam, "a power of two");
#pragma unroll
  for (int width = kTeam / 2, items = kItems; width > 0; width /= 2, items /= 2) {
    if (items > 1) {
      const bool upper = (lane & width) != 0;
#pragma unroll
      for (int i = 0; i < kItems / 2; ++i) {
        if (i < items / 2) {
#pragma unroll
          for (int gate = 0; gate < kGates; ++gate) {
            const float low = value[i][gate];
            const float high = value[i + items / 2][gate];
            value[i][gate] = (upper ? high : low) + __shfl_xor_sync(0xffffffff, upper ? low : high, width);
          }
        }
      }
    } else {
#pragma unroll
      for (int gate = 0; gate < kGates; ++gate) {
        value[0][gate] += __shfl_xor_sync(0xffffffff, value[0][gate], width);
      }
    }
  }
}

}  // namespace aten_ext::cuda
