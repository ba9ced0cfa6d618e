// Twin of aten_ext/device/sync.cuh.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

inline void sync_named(int barrier, int threads) {
  device_on_host::sync_named(barrier, threads);
}
inline void arrive_named(int barrier, int threads) {
  device_on_host::arrive_named(barrier, threads);
}
inline void launch_dependents() {}
inline void wait_for_previous_launches() {}

}  // namespace aten_ext::cuda
