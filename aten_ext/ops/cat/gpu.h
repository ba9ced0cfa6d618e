// What the launches of cat depend on of the GPU. Standard library only: plans and bridges name it.
#pragma once

#include <cstdint>

namespace aten_ext::cuda {

struct CatGpu {
  int argument_bytes = 4096;  // that a kernel's arguments may take
  int multiprocessors = 1;
  int64_t l2_bytes = 0;
  bool may_overlap = false;  // launches after the first with the one before
};

}  // namespace aten_ext::cuda
