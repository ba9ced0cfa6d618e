// A kernel that does nothing, compiled for the same architectures as all others: a GPU that can load it can
// load those. The driver says of it which code runs here, and how many clusters are resident at once.
#include <algorithm>
#include <iterator>

#include "core/launch.h"
#include "core/launch_sequence.h"
#include "core/query_gpu.h"

namespace aten_ext::cuda {
namespace {

__global__ void probe_kernel() {}

// Before sm_90 there are no clusters, and no attributes for them.
constexpr int kFirstCodeWithClusters = 90;
// The most blocks of a cluster that every GPU with clusters takes.
constexpr int kPortableBlocks = 8;

// The version of the code that runs here, 0 if the library has none.
cudaError_t query_code(int& code) {
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel);
  code = 0;
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    (void)cudaGetLastError();
    return cudaSuccess;
  }
  code = attributes.ptxVersion;
  return error;
}

// Blocks that take all of a multiprocessor's shared memory have it to themselves.
cudaError_t query_clusters(const GpuFacts& facts, int blocks, int& clusters) {
  clusters = 0;
  cudaError_t error = cudaSuccess;
  if (blocks > kPortableBlocks) {
    error = cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(blocks);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<size_t>(facts.shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveClusters(&clusters, probe_kernel, &config);
  }
  if (is_refusal(error)) {
    clusters = 0;
    return cudaSuccess;
  }
  return error;
}

}  // namespace

cudaError_t query_gpu(GpuFacts& facts) {
  facts = {};
  cudaError_t error = query_code(facts.code);
  int device = 0;
  if (error == cudaSuccess) {
    error = cudaGetDevice(&device);
  }
  int major = 0;
  int minor = 0;
  int l2_bytes = 0;
  int memory_khz = 0;
  int memory_bits = 0;
  const auto ask = [&](cudaDeviceAttr attribute, int& value) {
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&value, attribute, device);
    }
  };
  ask(cudaDevAttrComputeCapabilityMajor, major);
  ask(cudaDevAttrComputeCapabilityMinor, minor);
  ask(cudaDevAttrMultiProcessorCount, facts.multiprocessors);
  ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, facts.shared_bytes);
  ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor, facts.multiprocessor_shared_bytes);
  ask(cudaDevAttrL2CacheSize, l2_bytes);
  ask(cudaDevAttrMemoryClockRate, memory_khz);
  ask(cudaDevAttrGlobalMemoryBusWidth, memory_bits);
  facts.capability = 10 * major + minor;
  facts.l2_bytes = l2_bytes;
  facts.bytes_per_second = 2.0 * 1000.0 * memory_khz * memory_bits / 8;  // two transfers a clock
  cudaDeviceProp properties{};
  if (error == cudaSuccess) {
    error = cudaGetDeviceProperties(&properties, device);
  }
  std::copy(std::begin(properties.name), std::end(properties.name), facts.name);
  // Large arguments came with CUDA 12.1, for sm_70 and newer: that is every architecture that this is built
  // for.
  int driver = 0;
  if (error == cudaSuccess) {
    error = cudaDriverGetVersion(&driver);
  }
  const bool large = CUDART_VERSION >= 12010 && driver >= 12010;
  facts.argument_bytes = large ? kLargeArgumentBytes : kSmallArgumentBytes;
  facts.clusters[0] = facts.multiprocessors;
  if (error == cudaSuccess && facts.code != 0) {
    error =
        cudaFuncSetAttribute(probe_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, facts.shared_bytes);
  }
  for (int i = 1; error == cudaSuccess && facts.code >= kFirstCodeWithClusters && i < 5; ++i) {
    error = query_clusters(facts, 1 << i, facts.clusters[i]);
  }
  return error;
}

}  // namespace aten_ext::cuda
