// Twin of aten_ext/device/async_copy.cuh. A copy arrives no earlier than it is waited for.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <utility>

namespace aten_ext::cuda {
namespace async_copies {

inline device_on_host::AsyncCopies& mine() {
  std::unique_ptr<device_on_host::AsyncCopies>& copies = device_on_host::current->copies;
  if (copies == nullptr) {
    copies = std::make_unique<device_on_host::AsyncCopies>();
  }
  return *copies;
}

}  // namespace async_copies

inline void copy_async_4(void* shared, const void* global) {
  device_on_host::require_code(80);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 4 != 0) {
    device_on_host::fail("cp.async with an address that is no multiple of 4");
  }
  async_copies::mine().open.push_back({shared, global, 4});
}
inline void copy_async_16(void* shared, const void* global) {
  device_on_host::require_code(80);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
    device_on_host::fail("cp.async with an address that is no multiple of 16");
  }
  async_copies::mine().open.push_back({shared, global, 16});
}
// A group remembers "zeros" as an address of zeros.
inline void copy_async_16_or_zero(void* shared, const void* global, bool valid) {
  device_on_host::require_code(80);
  alignas(16) static const char zeros[16] = {};
  copy_async_16(shared, valid ? global : zeros);
}
inline void prefetch_to_l2(const void* /*global*/) {}
inline void prefetch_bulk_to_l2(const void* global, int bytes) {
  if ((reinterpret_cast<uintptr_t>(global) | static_cast<uintptr_t>(bytes)) % 16 != 0 || bytes <= 0) {
    device_on_host::fail("cp.async.bulk.prefetch of an address or a size that is no multiple of 16");
  }
}
inline void commit_async_copies() {
  device_on_host::require_code(80);
  device_on_host::AsyncCopies& mine = async_copies::mine();
  mine.closed.push_back(std::move(mine.open));
  mine.open.clear();
}
template <int groups>
void wait_async_copies() {
  device_on_host::AsyncCopies& mine = async_copies::mine();
  while (mine.closed.size() > groups) {
    for (const auto& [to, from, bytes] : mine.closed.front()) {
      memcpy(to, from, bytes);
    }
    mine.closed.pop_front();
  }
}

}  // namespace aten_ext::cuda
