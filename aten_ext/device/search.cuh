// Where a position falls in a list of beginnings.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

// The last i of [low, high) with begin[i] <= at, where begin[low] <= at and begin ascends. Each turn waits
// for a load.
template <typename Position>
__device__ __forceinline__ int find_last_begin(const Position* begin, Position at, int low, int high) {
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (begin[middle] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace aten_ext::cuda
