// What follows the sum of a linear layer. Standard library only.
#pragma once

#include <cstdint>

namespace aten_ext {

enum class Epilogue : uint8_t { None, ReLU, GELU };  // GELU in its tanh form

}  // namespace aten_ext
