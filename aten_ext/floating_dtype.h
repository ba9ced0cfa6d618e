// The dtypes that kernels over lists of tensors are compiled for, as a number that says so without ATen: it
// crosses the bridges cpu/<op>.h and cuda/<op>.h.
#pragma once

#include <cstdint>

namespace aten_ext {

enum class FloatingDtype : uint8_t { Float, Double, BFloat16, Half };

}  // namespace aten_ext
