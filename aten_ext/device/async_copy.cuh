// Copies from global to shared memory that do not pass through registers and that are waited for in groups
// (sm_80; before, they compile to a trap, so that one source serves a build for several architectures).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// 4 bytes; both addresses are multiples of 4.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
  [[maybe_unused]] const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(global) : "memory");
#else
  __trap();
#endif
}

// 16 bytes; both addresses are multiples of 16.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
  [[maybe_unused]] const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
  __trap();
#endif
}

// The same, or 16 bytes of zeros where `valid` is false: `global` is then not read, but must be an address.
__device__ __forceinline__ void copy_async_16_or_zero(void* shared, const void* global, bool valid) {
  [[maybe_unused]] const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  __trap();
#endif
}

// The same, of which only the first `bytes` (0 to 16) are read: the others are zeros. Through the L1, or by
// the L2 alone, to which the rest of its line comes too.
template <bool through_l1>
__device__ __forceinline__ void copy_async_16_first(void* shared, const void* global, int bytes) {
  [[maybe_unused]] const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#if __CUDA_ARCH__ >= 800
  if constexpr (through_l1) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(global),
                 "r"(bytes)
                 : "memory");
  }
#else
  __trap();
#endif
}

// Asks for the cache line at `global` to come to the L2, which is where all writes go: harmless however
// early.
__device__ __forceinline__ void prefetch_to_l2(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// The same of `bytes` bytes, any number of lines; both multiples of 16. Nothing before sm_90.
__device__ __forceinline__ void prefetch_bulk_to_l2(const void* global, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
#endif
}

// Closes a group: the copies of this thread since the one before.
__device__ __forceinline__ void commit_async_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  __trap();
#endif
}

// Waits until at most `groups` of this thread's groups, the latest, are under way.
template <int groups>
__device__ __forceinline__ void wait_async_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
  __trap();
#endif
}

}  // namespace aten_ext::cuda
