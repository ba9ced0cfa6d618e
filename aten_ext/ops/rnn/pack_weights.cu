// The weights of all layers copied into one buffer, as upstream does where they do not lie in one.
//
// Bytes: each is read and written once. The copy depends on no other kernel of the call, so it runs beside
// the last one (core/launch_sequence.h), where that leaves multiprocessors.
#include "ops/rnn/pack_weights.h"

#include <algorithm>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/sync.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostParts = 128;  // of a launch
constexpr int kVectors = 4;      // of a thread at once
constexpr int64_t kVectorBytes = 16;

struct Part {
  const char* from;
  char* to;
  int64_t bytes;
};
struct Arguments {
  Part part[kMostParts];
};

// Words from this thread's on, `apart` from one to the next.
template <typename Word>
__device__ __forceinline__ void copy_words(const Part& part, int64_t first, int64_t apart) {
  const int64_t count = part.bytes / static_cast<int64_t>(sizeof(Word));
  const auto* const from = reinterpret_cast<const Word*>(part.from);
  auto* const to = reinterpret_cast<Word*>(part.to);
  for (int64_t at = first; at < count; at += apart * kVectors) {
    Word words[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      words[i] = from != nullptr && at + i * apart < count ? from[at + i * apart] : Word{};
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (at + i * apart < count) {
        to[at + i * apart] = words[i];
      }
    }
  }
}

// gridDim: blocks of a part, parts.
__global__ __launch_bounds__(kThreads) void pack_weights_kernel(const __grid_constant__ Arguments a) {
  launch_dependents();
  const Part& part = a.part[blockIdx.y];
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t apart = int64_t{gridDim.x} * kThreads;
  const uint64_t all =
      reinterpret_cast<uintptr_t>(part.from) | reinterpret_cast<uintptr_t>(part.to) | part.bytes;
  if (all % sizeof(uint4) == 0) {
    copy_words<uint4>(part, first, apart);
  } else if (all % sizeof(uint32_t) == 0) {
    copy_words<uint32_t>(part, first, apart);
  } else {
    copy_words<uint16_t>(part, first, apart);
  }
  wait_for_previous_launches();
}

}  // namespace

cudaError_t launch_pack_weights(const std::vector<WeightPart>& parts, void* to, bool overlaps,
                                cudaStream_t stream) {
  char* next = static_cast<char*>(to);
  for (size_t done = 0; done < parts.size(); done += kMostParts) {
    const size_t count = std::min(parts.size() - done, size_t{kMostParts});
    Arguments arguments{};
    int64_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      const WeightPart& part = parts[done + i];
      arguments.part[i] = {static_cast<const char*>(part.from), next, part.bytes};
      next += part.bytes;
      most = std::max(most, part.bytes);
    }
    cudaLaunchConfig_t config{};
    config.gridDim =
        dim3(static_cast<unsigned>(std::max<int64_t>(1, ceil_div(most, kThreads * kVectors * kVectorBytes))),
             static_cast<unsigned>(count));
    config.blockDim = dim3(kThreads);
    config.stream = stream;
    cudaLaunchAttribute overlap = overlap_attribute();
    config.attrs = &overlap;
    config.numAttrs = overlaps ? 1 : 0;
    if (const cudaError_t error = cudaLaunchKernelEx(&config, pack_weights_kernel, arguments);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

}  // namespace aten_ext::cuda
