// Stands in for the rule about small calls: on the host every call is one, and the kernels are to be tested.
#pragma once

#include "ops/cat/inputs.h"

namespace aten_ext {

inline const char* decline_small_cat(const at::ITensorListRef& /*tensors*/, const CatInputs& /*found*/) {
  return nullptr;
}

}  // namespace aten_ext
