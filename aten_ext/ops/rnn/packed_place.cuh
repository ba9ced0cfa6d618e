// Which element of a packed sequence stands where in the padded one, and warps that copy a row each.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "ops/rnn/packed_sequence.h"

namespace aten_ext::cuda {

constexpr int kPackedThreads = 256;
constexpr int kPackedLanes = 32;
constexpr int kPackedWarps = kPackedThreads / kPackedLanes;

// What a warp copies: a row of one time, of one of several pieces of work.
struct PackedItem {
  int work;
  int64_t index;  // of [times, batch]
  int time, row;
};

// Row `row` of the padded sequence at a time.
struct PackedPlace {
  int row;
  int time;  // of the row's own element there
  bool exists;
  bool last;           // of the steps that the direction computes of this row
  int64_t packed_row;  // where it exists
};

// This warp's item, in 32 bits, which plan_rnn() sees to, of `works` pieces of work; behind the last one
// `work` is `works`.
__device__ __forceinline__ PackedItem packed_item(int works, const PackedSteps& of) {
  const int times = of.steps;
  const int batch = of.batch;
  const int warp = static_cast<int>(blockIdx.x) * kPackedWarps + static_cast<int>(threadIdx.x) / kPackedLanes;
  const int work = min(warp / (times * batch), works);
  const int index = warp - work * (times * batch);
  const int time = index / batch;
  return {work, index, time, index - time * batch};
}

__device__ __forceinline__ int packed_lane() {
  return static_cast<int>(threadIdx.x) % kPackedLanes;
}

__device__ __forceinline__ PackedPlace place_of(const PackedRows& rows, int padded_time, int row,
                                                int direction) {
  const int length = rows.length[row];
  const int time = direction == 0 ? padded_time : padded_time - (rows.steps - length);
  const bool exists = time >= 0 && time < length;
  return {row, time, exists, time == (direction == 0 ? length - 1 : 0),
          exists ? int64_t{rows.first_row[time]} + row : 0};
}

inline int64_t warps_of(const PackedSteps& of, int works) {
  return int64_t{of.steps} * of.batch * works;
}

// A warp for each row of each time. `overlaps`: with the launch before it (core/launch_sequence.h).
template <typename Arguments>
cudaError_t launch_warps(void (*kernel)(Arguments), const Arguments& arguments, int64_t warps,
                         cudaStream_t stream, bool overlaps = false) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(warps, int64_t{kPackedWarps})));
  config.blockDim = dim3(kPackedThreads);
  config.stream = stream;
  cudaLaunchAttribute overlap = overlap_attribute();
  config.attrs = &overlap;
  config.numAttrs = overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments);
}

}  // namespace aten_ext::cuda
