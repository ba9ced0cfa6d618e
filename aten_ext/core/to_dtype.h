// ATen's dtypes as the bridges name them.
#pragma once

#include <c10/core/ScalarType.h>

#include "core/dtype.h"

namespace aten_ext {

inline Dtype to_dtype(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return Dtype::Bool;
    case c10::ScalarType::Byte:
      return Dtype::UInt8;
    case c10::ScalarType::Char:
      return Dtype::Int8;
    case c10::ScalarType::Short:
      return Dtype::Int16;
    case c10::ScalarType::Int:
      return Dtype::Int32;
    case c10::ScalarType::Long:
      return Dtype::Int64;
    case c10::ScalarType::Half:
      return Dtype::Half;
    case c10::ScalarType::BFloat16:
      return Dtype::BFloat16;
    case c10::ScalarType::Float:
      return Dtype::Float;
    case c10::ScalarType::Double:
      return Dtype::Double;
    case c10::ScalarType::ComplexFloat:
      return Dtype::ComplexFloat;
    case c10::ScalarType::ComplexDouble:
      return Dtype::ComplexDouble;
    default:
      return Dtype::Other;
  }
}

}  // namespace aten_ext
