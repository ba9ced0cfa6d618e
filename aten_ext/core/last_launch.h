// Which launch came last on a stream that is being captured. Host code, no ATen.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace aten_ext::cuda {

// The last of some kernels' launches on a stream that was being captured. They let the next launch begin
// early. In a graph a launch that may overlap takes 0.5 us longer than an ordinary one behind a kernel that
// does not, and a graph shows what came last. A stream shows nothing, and there it takes less time behind
// any.
class LastLaunch {
 public:
  // launch(overlap) -> cudaError_t on `stream`.
  template <typename Launch>
  cudaError_t launch(cudaStream_t stream, const Launch& launch) {
    const Captured before = captured(stream);
    const cudaError_t error = launch(!before.is_active || is_last(before));
    if (error == cudaSuccess && before.is_active) {
      last_ = captured(stream);
    }
    return error;
  }

  // Whether `stream` is being captured, and another kernel or copy came last there. Of a graph's first launch
  // nobody knows what will come before it.
  bool is_behind_another(cudaStream_t stream) const {
    const Captured before = captured(stream);
    return before.is_active && before.has_nodes && !is_last(before);
  }

 private:
  // A node may have the address of one of a graph that is gone; a capture's number comes once.
  struct Captured {
    bool is_active = false;
    bool has_nodes = false;  // that the next one waits for
    unsigned long long capture = 0;
    cudaGraphNode_t node = nullptr;  // if there is one
  };

  bool is_last(const Captured& before) const {
    return before.node != nullptr && before.node == last_.node && before.capture == last_.capture;
  }

  static Captured captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    Captured now;
    const cudaGraphNode_t* nodes = nullptr;
    size_t count = 0;
#if CUDART_VERSION >= 13000
    const cudaGraphEdgeData* edges = nullptr;
    const cudaError_t error =
        cudaStreamGetCaptureInfo(stream, &status, &now.capture, nullptr, &nodes, &edges, &count);
#else
    const cudaError_t error =
        cudaStreamGetCaptureInfo_v2(stream, &status, &now.capture, nullptr, &nodes, &count);
#endif
    if (error != cudaSuccess) {
      (void)cudaGetLastError();  // nobody else shall stumble over it
      return {};
    }
    now.is_active = status == cudaStreamCaptureStatusActive;
    now.has_nodes = now.is_active && count > 0;
    now.node = now.is_active && count == 1 ? nodes[0] : nullptr;
    return now;
  }

  Captured last_;
};

}  // namespace aten_ext::cuda
