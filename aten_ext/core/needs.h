// What a plan asks of a GPU. Standard library only: bridges name it.
#pragma once

#include <cstdint>

namespace aten_ext {

// What the launch of a plan needs of a GPU.
struct Needs {
  int code = 75;                     // the least version of the code
  int shared_bytes = 0;              // of a block
  int cluster = 1;                   // blocks of a cluster: 1, 2, 4, 8 or 16
  int64_t resident_blocks = 0;       // that wait for one another, and so have to run at once
  int blocks_of_multiprocessor = 1;  // of those, that share a multiprocessor
};

}  // namespace aten_ext
