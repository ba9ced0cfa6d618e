// Thread-block clusters (sm_90): rank, the barrier in two halves, and the shared memory of the other blocks.
//
// Before sm_90 these compile to a trap, so that one source serves a build for several architectures; a launch
// with a cluster dimension is refused there before it comes to that.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// Which block of its cluster this is.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#else
  __trap();
#endif
  return rank;
}

// The first half of the cluster's barrier: what this thread wrote before, to any shared memory of the
// cluster, is seen by every thread after its cluster_wait(). All lanes of a warp together.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// The same without the order: for a barrier after which nothing written before is read. Spares the wait for
// one's own writes to global memory.
__device__ __forceinline__ void cluster_arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
  __trap();
#endif
}

// The second half: returns when every thread of the cluster has arrived. All lanes of a warp together.
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __trap();
#endif
}

}  // namespace aten_ext::cuda
