// Twin of aten_ext/device/async_copy.cuh. A copy arrives no earlier than it is waited for.
#pragma once

#include <cuda_runtime.h>

#include <memory>

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
  async_copies::mine().copies.push_back({shared, global, 4});
}
inline void copy_async_16(void* shared, const void* global) {
  device_on_host::require_code(80);
  if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % 16 != 0) {
    device_on_host::fail("cp.async with an address that is no multiple of 16");
  }
  async_copies::mine().copies.push_back({shared, global, 16});
}
// A group remembers "zeros" as an address of zeros.
inline void copy_async_16_or_zero(void* shared, const void* global, bool valid) {
  device_on_host::require_code(80);
  alignas(16) static const char zeros[16] = {};
  copy_async_16(shared, valid ? global : zeros);
}
template <bool through_l1>
inline void copy_async_16_first(void* shared, const void* global, int bytes) {
  static const char zeros[16] = {};
  if (bytes < 0 || bytes > 16) {
    device_on_host::fail("cp.async of 16 bytes that reads less than 0 or more than 16");
  }
  copy_async_16(shared, global);
  const auto read = static_cast<size_t>(bytes);
  async_copies::mine().copies.back() = {shared, global, read};
  async_copies::mine().copies.push_back({static_cast<char*>(shared) + read, zeros, 16 - read});
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
  mine.ends.push_back(mine.copies.size());
}
template <size_t groups>
void wait_async_copies() {
  device_on_host::AsyncCopies& mine = async_copies::mine();
  for (; mine.ends.size() - mine.arrived_groups > groups; ++mine.arrived_groups) {
    for (; mine.arrived_copies < mine.ends[mine.arrived_groups]; ++mine.arrived_copies) {
      const auto& [to, from, bytes] = mine.copies[mine.arrived_copies];
      memcpy(to, from, bytes);
    }
  }
  if (constexpr size_t kMany = 16; mine.arrived_groups >= kMany) {
    mine.copies.erase(mine.copies.begin(), mine.copies.begin() + mine.arrived_copies);
    mine.ends.erase(mine.ends.begin(), mine.ends.begin() + mine.arrived_groups);
    for (size_t& end : mine.ends) {
      end -= mine.arrived_copies;
    }
    mine.arrived_copies = mine.arrived_groups = 0;
  }
}

}  // namespace aten_ext::cuda
