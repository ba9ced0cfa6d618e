// Twin of aten_ext/cuda/device/sync.cuh. A load that others wait on gives them a turn.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

inline uint32_t load_acquire(const uint32_t* flag) {
  device_on_host::yield();
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}
inline void add_release(uint32_t* flag, uint32_t value) {
  __atomic_fetch_add(flag, value, __ATOMIC_RELEASE);
}
inline void sync_named(int barrier, int threads) {
  device_on_host::sync_named(barrier, threads);
}
inline void arrive_named(int barrier, int threads) {
  device_on_host::arrive_named(barrier, threads);
}
inline void launch_dependents() {}
inline void wait_for_previous_launches() {}

}  // namespace aten_ext::cuda
