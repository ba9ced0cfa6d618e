// Bridge between gpu.cpp and the driver's answers about the current device (query_gpu.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aten_ext::cuda {

// The fields of aten_ext::Gpu.
struct GpuFacts {
  int capability;
  int code;
  int multiprocessors;
  int shared_bytes;
  int multiprocessor_shared_bytes;
  int clusters[5];
  int64_t l2_bytes;
  double bytes_per_second;
  int argument_bytes;
  char name[256];
};

// Of the current device. Launches nothing and allocates nothing; asks the driver some twenty questions, so
// its caller keeps the answer.
cudaError_t query_gpu(GpuFacts& facts);

}  // namespace aten_ext::cuda
