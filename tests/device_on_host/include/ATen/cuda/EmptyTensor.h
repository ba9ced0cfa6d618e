// Stands in for ATen's: memory of the host.
#pragma once

#include <ATen/EmptyTensor.h>

namespace at::detail {

inline TensorBase empty_cuda(IntArrayRef size, ScalarType dtype, std::optional<Device> /*device*/,
                             std::optional<c10::MemoryFormat> format) {
  return empty_cpu(size, dtype, /*pin_memory=*/false, format);
}

}  // namespace at::detail
