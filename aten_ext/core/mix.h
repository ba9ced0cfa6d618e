// One more word of a hash. Standard library only.
#pragma once

#include <cstdint>

namespace aten_ext {

constexpr uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

}  // namespace aten_ext
