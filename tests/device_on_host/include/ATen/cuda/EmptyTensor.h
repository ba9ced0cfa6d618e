// Stands in for PyTorch's: memory of the CPU, aligned as CUDA's allocator does, filled with what no kernel
// may leave behind.
#pragma once

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>

namespace device_on_host {

struct AlignedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
    return {memory, memory, &std::free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &std::free;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace device_on_host

namespace at::detail {

inline TensorBase empty_cuda(IntArrayRef size, ScalarType dtype, std::optional<Device> /*device*/,
                             std::optional<c10::MemoryFormat> format) {
  static device_on_host::AlignedAllocator allocator;
  TensorBase result =
      empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::CPU), dtype, format);
  // All ones are a NaN in every floating-point type.
  std::memset(result.storage().mutable_data(), 0xff, result.storage().nbytes());
  return result;
}

}  // namespace at::detail
