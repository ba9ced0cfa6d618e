// Order between threads of different blocks, and between launches.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// One of the block's barriers 1 to 15, for `threads` of its threads (a multiple of 32), all lanes of a warp
// together.
__device__ __forceinline__ void sync_named(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same without waiting: one of the `threads` that the others wait for.
__device__ __forceinline__ void arrive_named(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Programmatic dependent launch (sm_90; nothing before). The next launch in the stream, if it asked to
// overlap, may start once every block of this one has called it or ended.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Returns when the launches before this one, which it may have overtaken, have ended and their writes are
// seen.
__device__ __forceinline__ void wait_for_previous_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace aten_ext::cuda
