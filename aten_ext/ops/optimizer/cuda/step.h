// What the ATen sides of the fused optimizer steps on CUDA share.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/optimizer/lists.h"
#include "ops/optimizer/overrides.h"

namespace aten_ext::cuda {

// The learning rate of a .tensor_lr overload is read on the device by the kernel, or on the host if it lives
// there (as upstream does).
inline const char* decline_lr(double /*lr*/, at::Device /*device*/) {
  return nullptr;
}
inline const char* decline_lr(const at::Tensor& lr, at::Device device) {
  if (lr.defined() && lr.is_cpu() && is_number(lr, lr.device())) {
    return nullptr;
  }
  return is_float_scalar(lr, device)
             ? nullptr
             : "lr that is neither one number on the CPU nor one float32 on the device";
}

inline bool is_on_device(double /*lr*/) {
  return false;
}
inline bool is_on_device(const at::Tensor& lr) {
  return !lr.is_cpu();
}

// The plan for lists that nothing speaks against. Code for sm_90 or newer waits for the launch before it at
// its end (tensor_list.cuh), so that launches may overlap.
template <class Args>
Choice<StepPlan> plan_step(const Args& a) {
  const Gpu& gpu = gpu_of(a.self[0].device());
  const StepPlan plan{to_dtype(a.self[0].scalar_type()),
                      a.grad_scale.has_value(),
                      is_on_device(a.lr),
                      gpu.code >= 90,
                      gpu.argument_bytes,
                      gpu.multiprocessors};
  const char* const reason = lacks(gpu, plan.needs());
  return reason != nullptr ? Choice<StepPlan>(reason) : plan;
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "core/launch.h"
#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

// The learning rate for the kernel: a number, or where it is on the device.
struct StepLr {
  double value;
  const float* pointer;
};
inline StepLr step_lr(double lr, const StepPlan& /*plan*/) {
  return {lr, nullptr};
}
inline StepLr step_lr(const at::Tensor& lr, const StepPlan& plan) {
  return plan.lr_on_device ? StepLr{0.0, lr.const_data_ptr<float>()} : StepLr{lr_value(lr), nullptr};
}

// What run() answers. Upstream can take over only where nothing was written.
inline Ran<void> finish(const Launched& launched) {
  if (launched.count == 0 && is_refusal(launched.error)) {
    return kRefused;
  }
  C10_CUDA_CHECK(launched.error);
  return {};
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
