// Where upstream's fused steps on CPU are not the same in every release of torch. The kernels give the bits
// of the release that they are built against, which is the one that they run with (_load.py sees to that).
#pragma once

#include <torch/headeronly/version.h>

namespace aten_ext::cpu {

constexpr int kTorch = TORCH_VERSION_MAJOR * 1000 + TORCH_VERSION_MINOR;

// Adagrad rounds the scalars of fp16 and bf16 tensors to these types for whole vectors, and not only to fp32.
constexpr bool kAdagradRoundsScalars = kTorch < 2014;

// SGD in fp16 and bf16 updates only the elements after a tensor's last whole vector, and reads momentum
// buffers as if they were fp32.
constexpr bool kSgdIn16BitsIsBroken = kTorch < 2014;

}  // namespace aten_ext::cpu
