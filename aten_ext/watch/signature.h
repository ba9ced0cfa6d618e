// What a call looks like, in one line: "tensors=[float32[2, 3], float32[4, 3]], dim=0".
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace aten_ext {

// The arguments of a call as PyTorch's own any-type, for the profiler and for signature().
template <class... Arguments>
std::vector<c10::IValue> box(const Arguments&... arguments) {
  std::vector<c10::IValue> boxed;
  boxed.reserve(sizeof...(Arguments));
  (boxed.emplace_back(arguments), ...);
  return boxed;
}

// Tensors as dtype[sizes], with (strides) where they are not contiguous and @device where that is not the
// CPU; of a list of more than 4 elements the first 3, the length, and a hash, so that other lists differ.
// Integers (a dtype is one, too), booleans and strings as they are. Left out: what is None, and
// floating-point numbers, because with a learning-rate schedule no two calls would look alike.
std::string signature(const std::vector<c10::IValue>& arguments, const char* const* names);

}  // namespace aten_ext
