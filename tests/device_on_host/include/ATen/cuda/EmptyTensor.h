// Stands in for PyTorch's: memory of the CPU, filled with what no kernel may leave behind.
#pragma once

#include <ATen/EmptyTensor.h>

#include <cstring>

namespace at::detail {

inline TensorBase empty_cuda(IntArrayRef size, ScalarType dtype, std::optional<Device> /*device*/,
                             std::optional<c10::MemoryFormat> format) {
  TensorBase result = empty_cpu(size, dtype, /*pin_memory=*/false, format);
  // All ones are a NaN in every floating-point type.
  std::memset(result.storage().mutable_data(), 0xff, result.storage().nbytes());
  return result;
}

}  // namespace at::detail
