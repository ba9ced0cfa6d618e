// Stands in for PyTorch's: memory of the CPU, filled with what no kernel may leave behind.
#pragma once

#include <ATen/ops/full.h>

#include <limits>

namespace at::detail {

inline Tensor empty_cuda(IntArrayRef size, ScalarType dtype, std::optional<Device> /*device*/,
                         std::optional<c10::MemoryFormat> /*format*/) {
  return at::full(size, std::numeric_limits<double>::quiet_NaN(), at::TensorOptions().dtype(dtype));
}

}  // namespace at::detail
