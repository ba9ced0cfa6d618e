// How the blocks that share a GRU layer's hidden state hand it round between steps.
//
//   BlockExchange    one block has all of it: __syncthreads.
//   ClusterExchange  a thread-block cluster (sm_90): each block writes its slice into the shared memory of
//   all, which
//                    is double-buffered, and one cluster barrier separates steps. Writing to the buffer of
//                    step t + 1 cannot overtake a read of it in step t - 1, for the barrier of step t - 1
//                    lies between.
//   GridExchange     any number of co-resident blocks: slices go to global memory, double-buffered, a counter
//   is the
//                    barrier, and each block then copies the whole state into its shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/cluster.cuh"
#include "cuda/device/sync.cuh"

namespace aten_ext::cuda {

struct BlockExchange {
  static constexpr int kBuffers = 2;
};
struct ClusterExchange {
  static constexpr int kBuffers = 2;
};
struct GridExchange {
  static constexpr int kBuffers = 1;
};

// A cooperative launch has all blocks running, so a wait is short; a wait that never ends would be a bug of
// ours, and is an error of the launch instead of a hang. Polls, not time: a debugger may stop the device for
// as long as it likes. One takes about 0.7 us, all of them minutes.
constexpr uint32_t kMostPolls = 1u << 28;

// Returns when `target` blocks in all have arrived at `arrived`. What any of them wrote before is seen by L2
// reads.
__device__ __forceinline__ void gru_grid_barrier(uint32_t* arrived, uint32_t target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    add_release(arrived, 1);
    uint32_t polls = 0;
    while (load_acquire(arrived) < target) {
      if (++polls == kMostPolls) {
        __trap();
      }
    }
  }
  __syncthreads();
}

}  // namespace aten_ext::cuda
