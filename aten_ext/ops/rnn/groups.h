// Groups of a batch, each of which some blocks compute by themselves. Standard library only.
#pragma once

#include <cstdint>

#include "core/math.h"

namespace aten_ext::cuda {

// Rows of a group if the first `fewer` rows of a batch are in as many groups as the whole has, of `rows`
// each.
inline int rows_in_as_many_groups(int64_t batch, int rows, int64_t fewer) {
  return static_cast<int>(ceil_div(fewer, ceil_div(batch, int64_t{rows})));
}

}  // namespace aten_ext::cuda
