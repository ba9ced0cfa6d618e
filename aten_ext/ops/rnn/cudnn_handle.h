// PyTorch's handle of cuDNN, which a captured call of upstream's needs.
#pragma once

#include <c10/core/Device.h>

struct cudnnContext;

namespace at::native {

// Of this thread and the current device, set to the current stream (ATen/cudnn/Handle.h). Null where torch
// has none; nothing here is linked against cuDNN.
[[gnu::weak]] cudnnContext* getCudnnHandle();

}  // namespace at::native

namespace aten_ext::cuda {

// Has PyTorch make this thread's handle for the current device, once. It makes one at a thread's first call
// of cuDNN, which fails while a graph is captured. Calls that warm up for a capture may run here, and the
// captured one upstream: then nobody else would have had the handle made.
void make_cudnn_handle(c10::Device device);

}  // namespace aten_ext::cuda
