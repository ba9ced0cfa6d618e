// What the launches of cat depend on of the GPU. Standard library only: plans and bridges name it.
#pragma once

#include <cstdint>

namespace aten_ext::cuda {

struct CatGpu {
  int argument_bytes = 4096;  // that a kernel's arguments may take
  int multiprocessors = 1;
  int64_t l2_bytes = 0;
  bool may_overlap = false;  // launches after the first with the one before
  bool has_async_copies = false;

  // Results of which four do not fit into the L2, 15 MB of an H200's: sectors that one input's blocks have
  // written in part leave it before another's write the rest, unless inputs take turns.
  bool is_large(int64_t result_bytes) const {
    return 4 * result_bytes > l2_bytes;
  }
};

// Where a table has the figure of elements, or words, of 1, 2, 4, 8 or 16 bytes; -1: of others it has none.
constexpr int index_of_size(int64_t bytes) {
  return bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : bytes == 8 ? 3 : bytes == 16 ? 4 : -1;
}

}  // namespace aten_ext::cuda
