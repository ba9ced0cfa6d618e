// Stands in for the rule about what upstream is as fast at: on the host the kernels are to be tested.
#pragma once

#include "ops/cat/inputs.h"

namespace aten_ext {

inline const char* decline_by_crossover(const at::ITensorListRef& /*tensors*/, const CatInputs& /*found*/) {
  return nullptr;
}

}  // namespace aten_ext
