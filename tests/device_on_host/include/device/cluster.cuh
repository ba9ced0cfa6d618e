// Twin of aten_ext/device/cluster.cuh.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

inline uint32_t cluster_rank() {
  device_on_host::require_code(90);
  return device_on_host::current->block->cluster_rank;
}
inline void cluster_arrive() {
  device_on_host::require_code(90);
  device_on_host::cluster_arrive();
}
inline void cluster_arrive_relaxed() {
  device_on_host::require_code(90);
  device_on_host::cluster_arrive();
}
inline void cluster_wait() {
  device_on_host::require_code(90);
  device_on_host::cluster_wait();
}
}  // namespace aten_ext::cuda
