// Launches that may overlap with the launch before them (programmatic dependent launch). Host code, no ATen.
//
// An overlapping kernel starts while the one before it still runs, and waits for that one's end where it
// calls wait_for_previous_launches() (device/sync.cuh). Gpu::may_overlap() says whether the code that runs
// there waits; the plan holds the answer, and nothing is asked at a launch.
//
// A kernel's arguments reach the GPU as a copy in constant memory that the launch makes: nothing to allocate,
// nothing to wait for, nothing that a CUDA graph could not replay. A launch costs more with more to copy, so
// short lists take the small size.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace aten_ext::cuda {

// Bytes that a kernel's arguments may take: on every GPU, and with a driver for CUDA 12.1 or newer
// (Gpu::argument_bytes says which).
constexpr int kSmallArgumentBytes = 4096;
constexpr int kLargeArgumentBytes = 32764;
// An array of a kernel's arguments that is indexed at run time begins before this byte. ptxas 13.0 encodes
// where it begins in 16 bits with a sign, counted from up to 1 KB before the arguments: from an array that
// begins later, the kernel reads other memory.
constexpr int kIndexedArgumentBytes = 32767 - 1024;

// The shape of one launch.
struct LaunchShape {
  int64_t blocks;
  int threads;
  size_t smem_bytes = 0;
  int cluster = 1;  // blocks of a cluster
};

// Of a launch that may start before the one before it has ended.
inline cudaLaunchAttribute overlap_attribute() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

// Queues a kernel. `overlap`: it may start before the launch before it has ended.
template <typename Args>
cudaError_t launch_kernel(void (*kernel)(Args), const LaunchShape& shape, bool overlap, const Args& args,
                          cudaStream_t stream) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (overlap) {
    attributes[count++] = overlap_attribute();
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attributes[count].val.clusterDim.y = 1;
    attributes[count].val.clusterDim.z = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.smem_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, args);
}

// The launches of one call, by kernels that do not depend on one another. Each calls launch_dependents()
// first and wait_for_previous_launches() last, so that all but the first may overlap with the one before, and
// the last one ends last.
class LaunchSequence {
 public:
  LaunchSequence(cudaStream_t stream, bool may_overlap) : stream_(stream), may_overlap_(may_overlap) {}

  template <typename Args>
  cudaError_t launch(void (*kernel)(Args), int64_t blocks, int threads, const Args& args) {
    const bool overlap = may_overlap_ && launches_ > 0;
    ++launches_;
    return launch_kernel(kernel, {blocks, threads}, overlap, args, stream_);
  }

  // Copies memory as it is, by whatever the driver has for that.
  cudaError_t copy(void* to, const void* from, int64_t bytes) {
    ++launches_;
    return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_);
  }

  int launches() const {
    return launches_;
  }

 private:
  cudaStream_t stream_;
  bool may_overlap_;
  int launches_ = 0;
};

}  // namespace aten_ext::cuda
