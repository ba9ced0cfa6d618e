// Which kernel converts runs: that of convert.cu, in vectors, or that of gather.cu, one element a thread at a
// time. Timings: docs/kernels/cat.md.
#pragma once

#include <cstdint>

#include "ops/cat/gpu.h"

namespace aten_ext {

// In results of up to so many elements for each multiprocessor latency decides, and an element is made
// sooner than a vector.
inline constexpr int64_t kConvertedSinglyPerSM = 8192;
// Beyond, vectors are faster where runs begin and end with one, or are of so many elements on average: a
// vector across two runs is made element after element, and its warp waits for it.
inline constexpr int64_t kConvertedRun = 1280;

// Whether runs are converted in vectors. `whole`: all begin and end with one.
inline bool converts_in_vectors(const cuda::CatGpu& gpu, int64_t rows, int64_t row_size, int64_t count,
                                bool whole) {
  return rows * row_size > kConvertedSinglyPerSM * gpu.multiprocessors &&
         (whole || row_size >= kConvertedRun * count);
}

}  // namespace aten_ext
