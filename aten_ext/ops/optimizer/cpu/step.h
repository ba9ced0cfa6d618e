// What the ATen sides of the fused optimizer steps on CPU share.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/denormals.h"
#include "core/to_dtype.h"
#include "ops/optimizer/cpu/tensor_list.h"
#include "ops/optimizer/lists.h"
#include "ops/optimizer/overrides.h"

namespace aten_ext::cpu {

// Upstream's build for a machine without AVX2 is not slower than ours (measured).
inline const char* decline_machine() {
  return has_avx2() ? nullptr : "CPU without AVX2";
}

// torch.set_flush_denormal changes the calling thread alone, and upstream deals the elements out to threads
// otherwise than we do: which denormals become zero is its own. Asked last: reading the mode takes longer
// than most reasons.
inline const char* decline_mode(const Inspected& found, int64_t element_size) {
  if (flushes_denormals()) {
    return "flush-denormal is on";
  }
  // Upstream keeps a tensor of one unit on the calling thread, and shares every other with its pool.
  const bool may_share = found.elements * element_size > kUnitBytes;
  return may_share && pool_flushes_otherwise() ? "threads that flush denormals otherwise" : nullptr;
}

// The learning rate of a .tensor_lr overload is read on the host.
inline const char* decline_lr(double /*lr*/, at::Device /*device*/) {
  return nullptr;
}
inline const char* decline_lr(const at::Tensor& lr, at::Device device) {
  return is_number(lr, device) ? nullptr : "lr that is not one number on the parameters' device";
}

// The plan for lists that nothing speaks against.
template <class Args>
StepPlan plan_step(const Args& a, const Inspected& found) {
  return {to_dtype(a.self[0].scalar_type()), a.grad_scale.has_value(), worth_threads(found.elements)};
}

// Whether found_inf tells the step to change nothing.
inline bool found_infinity(const std::optional<at::Tensor>& found_inf) {
  return found_inf.has_value() && *found_inf->const_data_ptr<float>() == 1.0f;
}

}  // namespace aten_ext::cpu
