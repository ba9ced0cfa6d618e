// The rule of _foreach_add_.Scalar, for both devices. The kernels are for an optimizer's step counters, one
// fp32 number in a tensor of its own for each parameter; lists of anything larger are upstream's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <limits>

#include "core/checks.h"

namespace aten_ext {

// nullptr, or the reason why upstream runs.
inline const char* decline_foreach_add(at::TensorList self, const at::Scalar& scalar) {
  if (self.empty()) {
    return "no tensors";
  }
  if (!self[0].defined()) {
    return "undefined tensor";
  }
  const at::Device device = self[0].device();
  for (const at::Tensor& t : self) {
    if (!is_float_scalar(t, device)) {
      return "tensor that is not one float32 on the first one's device";
    }
    if (t.is_inference()) {  // it has no version to count, and may not be changed outside of inference mode
      return "inference tensor";
    }
  }
  if (scalar.isSymbolic() || !(scalar.isFloatingPoint() || scalar.isIntegral(/*includeBool=*/false))) {
    return "scalar that is not a real number";
  }
  // Upstream rounds it to an infinity (CPU) or raises (CUDA).
  const double value = scalar.toDouble();
  return std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()
             ? "scalar beyond the range of float32"
             : nullptr;
}

// As upstream rounds it.
inline float to_float(const at::Scalar& scalar) {
  return scalar.isFloatingPoint() ? static_cast<float>(scalar.toDouble())
                                  : static_cast<float>(scalar.toLong());
}

}  // namespace aten_ext
