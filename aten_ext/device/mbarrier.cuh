// Barriers in shared memory that count bytes, and stores to other blocks of a cluster that count there when
// they arrive (sm_90): data and the signal that it is there travel together.
//
// A phase of a barrier ends when as many threads have arrived as it was made for and as many bytes have come
// in as were expected; bytes may come before they are expected. Before sm_90 these compile to a trap.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

// `mbarrier` is 8 bytes of shared memory. One thread makes it; a cluster_arrive() and cluster_wait() of all
// must lie between that and the first use, and fence_mbarriers() by that thread before it.
__device__ __forceinline__ void make_mbarrier(uint64_t* mbarrier, uint32_t threads) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(threads) : "memory");
#else
  __trap();
#endif
}

__device__ __forceinline__ void fence_mbarriers() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  __trap();
#endif
}

// Arrives, and lets the current phase expect so many bytes.
__device__ __forceinline__ void arrive_and_expect(uint64_t* mbarrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
               : "memory");
#else
  __trap();
#endif
}

// Polls, not time: a debugger may stop the device for as long as it likes. A poll waits up to some
// microseconds itself.
constexpr uint32_t kMaxMbarrierPolls = 1u << 26;

// Returns when the phase of that parity (0 for the first, 1 for the second, 0...) has ended; what was stored
// with it is seen. A wait that never ends is an error of the launch instead of a hang.
__device__ __forceinline__ void wait_for_phase(uint64_t* mbarrier, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier));
  for (uint32_t polls = 0;; ++polls) {
    uint32_t ended;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(address), "r"(parity)
        : "memory");
    if (ended != 0) {
      return;
    }
    if (polls == kMaxMbarrierPolls) {
      __trap();
    }
  }
#else
  __trap();
#endif
}

// The shared memory of a block of this cluster, for store_async().
struct PeerShared {
  uint32_t offset;  // from an address of this block's shared memory to the same of that block
};

__device__ __forceinline__ PeerShared peer_shared(void* of_this_block, uint32_t rank) {
  PeerShared peer{0};
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(of_this_block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer.offset) : "r"(address), "r"(rank));
  peer.offset -= address;
#else
  (void)of_this_block;
  (void)rank;
  __trap();
#endif
  return peer;
}

// Stores to where `local`, in this block, lies in the peer, and counts the bytes of `value` (4, 8 or 16) on
// the peer's `mbarrier`. Returns at once.
__device__ __forceinline__ void store_async(PeerShared peer, void* local, uint32_t value,
                                            uint64_t* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(local)) + peer.offset),
               "r"(value), "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier)) + peer.offset)
               : "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void store_async(PeerShared peer, void* local, uint2 value, uint64_t* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(local)) + peer.offset),
               "r"(value.x), "r"(value.y),
               "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier)) + peer.offset)
               : "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void store_async(PeerShared peer, void* local, uint4 value, uint64_t* mbarrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          static_cast<uint32_t>(__cvta_generic_to_shared(local)) + peer.offset),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w),
      "r"(static_cast<uint32_t>(__cvta_generic_to_shared(mbarrier)) + peer.offset)
      : "memory");
#else
  __trap();
#endif
}

}  // namespace aten_ext::cuda
