// A tensor's dtype as a number that says so without ATen: it crosses the bridges between the ATen side and
// the kernels. Standard library only.
#pragma once

#include <cstdint>

namespace aten_ext {

enum class Dtype : uint8_t {
  Bool,
  UInt8,
  Int8,
  Int16,
  Int32,
  Int64,
  Half,
  BFloat16,
  Float,
  Double,
  ComplexFloat,
  ComplexDouble,
  Other,  // known by its size alone
};

}  // namespace aten_ext
