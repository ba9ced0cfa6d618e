// Stands in for CUDA's runtime: its types are the real ones; its functions are named away by macros to those
// of device_on_host, because the real ones are declared by the same headers as the types.
#pragma once

#include_next <cuda_runtime_api.h>

#include <cstring>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "../runtime.h"

#undef cudaStreamGetCaptureInfo
#undef cudaStreamGetCaptureInfo_v2

namespace device_on_host::api {

inline cudaError_t cudaGetDevice(int* device) {
  *device = device_on_host::device().number;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int /*device*/) {
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "an error of device_on_host";
}
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = device_on_host::device().driver;
  return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  std::strcpy(properties->name, "device_on_host");
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  const device_on_host::Device& device = device_on_host::device();
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.compute_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.compute_minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = device.shared_bytes_per_block;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = device.shared_bytes_per_multiprocessor;
      return cudaSuccess;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      return cudaSuccess;
    case cudaDevAttrMemoryClockRate:
      *value = 3201000;
      return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 6144;
      return cudaSuccess;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrClusterLaunch:
      *value = 1;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes,
                                   cudaStream_t /*stream*/ = nullptr) {
  memset(pointer, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind /*kind*/,
                                   cudaStream_t /*stream*/ = nullptr) {
  memmove(to, from, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return cudaSuccess;
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status =
      device_on_host::device().capture == 0 ? cudaStreamCaptureStatusNone : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

// Of CUDA 12, and of 13, where edges have data.
inline cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                               unsigned long long* capture, cudaGraph_t* /*graph*/,
                                               const cudaGraphNode_t** nodes, size_t* count) {
  static thread_local cudaGraphNode_t last;
  const device_on_host::Device& device = device_on_host::device();
  *capture = device.capture;
  last = reinterpret_cast<cudaGraphNode_t>(device.captured);
  *nodes = &last;
  *count = device.captured == 0 ? 0 : 1;
  return api::cudaStreamIsCapturing(stream, status);
}
template <typename Edges>
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* capture, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, Edges* /*edges*/, size_t* count) {
  return api::cudaStreamGetCaptureInfo_v2(stream, status, capture, graph, nodes, count);
}

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) {
    return cudaErrorInvalidDeviceFunction;
  }
  const bool fits = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
                    value <= device_on_host::device().shared_bytes_per_block;
  if (!fits) {
    return cudaErrorInvalidValue;
  }
  device_on_host::set_function_limit(reinterpret_cast<const void*>(kernel), attribute, value);
  return cudaSuccess;
}
template <typename... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*)(Parameters...)) {
  *attributes = {};
  if (device_on_host::device().code == 0) {
    return cudaErrorNoKernelImageForDevice;
  }
  attributes->ptxVersion = attributes->binaryVersion = device_on_host::device().code;
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void (*)(Parameters...),
                                                          int /*threads*/, size_t /*shared*/) {
  *blocks = device_on_host::device().blocks_per_multiprocessor;
  return cudaSuccess;
}
template <typename... Parameters>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, void (*)(Parameters...),
                                           const cudaLaunchConfig_t* config) {
  unsigned blocks = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
      blocks = config->attrs[i].val.clusterDim.x;
    }
  }
  *clusters = 0;
  for (int i = 0; i < 5; ++i) {
    *clusters = blocks == 1u << i ? device_on_host::device().clusters[i] : *clusters;
  }
  return cudaSuccess;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<std::decay_t<Parameters>...> copies(std::forward<Arguments>(arguments)...);
  static_assert(sizeof(copies) <= 32764, "kernel arguments too large");
  return device_on_host::launch(
      *config, {reinterpret_cast<const void*>(kernel), [&copies, kernel] { std::apply(kernel, copies); },
                typeid(void (*)(Parameters...)).name()});
}

}  // namespace device_on_host::api

#undef cudaGetDeviceProperties
#define cudaGetDeviceProperties ::device_on_host::api::cudaGetDeviceProperties
#define cudaDeviceGetAttribute ::device_on_host::api::cudaDeviceGetAttribute
#define cudaDriverGetVersion ::device_on_host::api::cudaDriverGetVersion
#define cudaFuncGetAttributes ::device_on_host::api::cudaFuncGetAttributes
#define cudaFuncSetAttribute ::device_on_host::api::cudaFuncSetAttribute
#define cudaGetDevice ::device_on_host::api::cudaGetDevice
#define cudaGetErrorString ::device_on_host::api::cudaGetErrorString
#define cudaGetLastError ::device_on_host::api::cudaGetLastError
#define cudaLaunchKernelEx ::device_on_host::api::cudaLaunchKernelEx
#define cudaMemcpyAsync ::device_on_host::api::cudaMemcpyAsync
#define cudaMemsetAsync ::device_on_host::api::cudaMemsetAsync
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor \
  ::device_on_host::api::cudaOccupancyMaxActiveBlocksPerMultiprocessor
#define cudaOccupancyMaxActiveClusters ::device_on_host::api::cudaOccupancyMaxActiveClusters
#define cudaPeekAtLastError ::device_on_host::api::cudaPeekAtLastError
#define cudaSetDevice ::device_on_host::api::cudaSetDevice
#define cudaStreamGetCaptureInfo ::device_on_host::api::cudaStreamGetCaptureInfo
#define cudaStreamGetCaptureInfo_v2 ::device_on_host::api::cudaStreamGetCaptureInfo_v2
#define cudaStreamIsCapturing ::device_on_host::api::cudaStreamIsCapturing
#define cudaStreamSynchronize ::device_on_host::api::cudaStreamSynchronize
