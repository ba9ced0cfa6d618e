// A GPU as a value: the facts about it that rules need. Standard library and c10::Device only.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/needs.h"

namespace aten_ext {

// Facts about one GPU, and about the code of this build that runs on it.
struct Gpu {
  int capability = 0;  // compute capability times 10: 90 is sm_90
  int code = 0;        // that of the code that runs here: PTX may be older than the GPU. 0: there is none
  int multiprocessors = 0;              // that a kernel of this process may use
  int shared_bytes = 0;                 // the most dynamic shared memory that a block may ask for
  int multiprocessor_shared_bytes = 0;  // of all blocks of a multiprocessor, with 1 KB a block for the system
  // Clusters of 1, 2, 4, 8 and 16 blocks that are resident at once, each block with a multiprocessor to
  // itself.
  std::array<int, 5> clusters{};
  int64_t l2_bytes = 0;
  double bytes_per_second = 0;  // of memory, by its clock and width
  int argument_bytes = 4096;    // that a kernel's arguments may take
  const char* name = "";        // as the driver gives it; lives as long as the process

  // Whether a launch may overlap with the one before it (core/launch_sequence.h): only code for sm_90 or
  // newer waits where it has to. Older PTX that was compiled for such a GPU waits for nothing.
  bool may_overlap() const {
    return code >= 90;
  }

  // Whether copies to shared memory can pass by the registers (device/async_copy.cuh).
  bool has_async_copies() const {
    return code >= 80;
  }
};

// The first thing that a GPU lacks, as a reason to go upstream; nullptr: nothing.
const char* lacks(const Gpu& gpu, const Needs& needs);

// An H100 or H200: what questions about tensors on the meta device are answered for.
const Gpu& reference_gpu();

// The GPU that a tensor's device is. The driver is asked once a device; after that this is one atomic load.
// A device that is no GPU (meta) stands for the pretended GPU, or else for the reference.
const Gpu& gpu_of(c10::Device device);

// From now on this thread takes devices that are no GPU for one with these facts: the fields of Gpu in their
// order, without the two about memory, and its name; no facts: for the reference again. For tests, and for
// explain() about a GPU elsewhere.
void pretend_gpu(c10::ArrayRef<int64_t> facts, const std::string& name = "");

// nullptr, or that this build has no code for the GPU at `device`. The generated entries at CUDA ask it after
// choose().
const char* decline_gpu(std::optional<c10::Device> device);

}  // namespace aten_ext
