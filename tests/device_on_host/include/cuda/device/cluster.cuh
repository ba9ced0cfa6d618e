// Twin of aten_ext/cuda/device/cluster.cuh.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

inline uint32_t cluster_rank() {
  return device_on_host::current->block->cluster_rank;
}
inline uint32_t cluster_size() {
  return device_on_host::current->block->cluster_size;
}
inline void cluster_arrive() {
  device_on_host::cluster_arrive();
}
inline void cluster_arrive_relaxed() {
  device_on_host::cluster_arrive();
}
inline void cluster_wait() {
  device_on_host::cluster_wait();
}
template <typename T>
T* map_shared(T* local, uint32_t rank) {
  return static_cast<T*>(device_on_host::map_shared(const_cast<std::remove_cv_t<T>*>(local), rank));
}

}  // namespace aten_ext::cuda
