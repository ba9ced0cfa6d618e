// Bridge between the ATen side of the fused Adam step on CPU (fused_adam.cpp) and its kernel, which is
// compiled with AVX2 (fused_adam_kernel.cpp). No ATen here.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cpu/tensor_list.h"

namespace aten_ext::cpu {

enum AdamList { kExpAvg = kFirstState, kExpAvgSq, kMaxExpAvgSq, kAdamLists };  // the last with amsgrad

struct FusedAdamParams {
  const FlatTensors<kAdamLists>* tensors;  // [count], at least one
  int64_t count;
  Dtype dtype;
  bool decoupled;  // AdamW's decay of the parameter itself, not Adam's addition to the gradient
  bool amsgrad;
  bool maximize;
  bool has_grad_scale;
  float grad_scale;
  double lr, beta1, beta2, weight_decay, eps;
};

// Updates the units [begin, end) of the list as if its tensors were one.
#if defined(__x86_64__)
namespace AVX2 {
void fused_adam(const FusedAdamParams& params, int64_t begin, int64_t end);
}
#endif

}  // namespace aten_ext::cpu
