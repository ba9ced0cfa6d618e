// A list of parameters with their gradients and states: what a fused optimizer step hands from cuda/<op>.cpp
// to cuda/<op>.cu. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aten_ext::cuda {

// The first two lists of every optimizer; its states follow.
enum List { kParam, kGrad, kFirstState };

// One parameter with all that belongs to it: flat, element i of each is the same index.
template <int lists>
struct FlatTensors {
  void* data[lists];  // [numel] each
  const float* step;  // [1] on the device; nullptr for an optimizer that does not count steps
  int64_t numel;      // > 0
};

// How the launches of a list are made.
struct ListLaunch {
  bool overlaps;       // each but the first may start while the one before it runs
  int argument_bytes;  // that the GPU takes in a kernel's arguments
  int multiprocessors;
};

// What became of the launches of a list.
struct Launched {
  cudaError_t error;  // of the first launch that failed
  int count;          // launches before it
};

}  // namespace aten_ext::cuda
