// Bridge between the ATen side of the fused Adam step on CPU (fused_adam.cpp) and its kernel, which is
// compiled with AVX2 (fused_adam_kernel.cpp). No ATen here.
#pragma once

#include <cstdint>

namespace aten_ext::cpu {

enum class AdamDtype : uint8_t { Float, Double, BFloat16, Half };

// One parameter with all that belongs to it: flat, element i of each is the same index.
struct FusedAdamTensor {
  void* param;           // [numel]
  void* grad;            // [numel]; written only with a grad_scale
  void* exp_avg;         // [numel]
  void* exp_avg_sq;      // [numel]
  void* max_exp_avg_sq;  // [numel], nullptr without amsgrad
  int64_t numel;
  int64_t first_unit;  // units of FusedAdamParams::kUnitBytes in the tensors before this one
  float step;
};

struct FusedAdamParams {
  const FusedAdamTensor* tensors;  // [count], at least one
  int64_t count;
  AdamDtype dtype;
  bool decoupled;  // AdamW's decay of the parameter itself, not Adam's addition to the gradient
  bool amsgrad;
  bool maximize;
  bool has_grad_scale;
  float grad_scale;
  double lr, beta1, beta2, weight_decay, eps;

  // Work is split in whole cache lines, so that no two threads write to one.
  static constexpr int64_t kUnitBytes = 64;
};

// Updates the units [begin, end) of the list as if its tensors were one.
#if defined(__x86_64__)
namespace AVX2 {
void fused_adam(const FusedAdamParams& params, int64_t begin, int64_t end);
}
#endif

}  // namespace aten_ext::cpu
