// Bridge between the ATen side of the fused Adagrad step on CPU (fused_adagrad.cpp) and its kernel, which is
// compiled with AVX2 (fused_adagrad_kernel.cpp). No ATen here.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cpu/tensor_list.h"

namespace aten_ext::cpu {

enum AdagradList { kStateSum = kFirstState, kAdagradLists };

struct FusedAdagradParams {
  const FlatTensors<kAdagradLists>* tensors;  // [count], at least one
  int64_t count;
  Dtype dtype;
  bool maximize;
  bool has_grad_scale;
  float grad_scale;
  double lr, lr_decay, weight_decay, eps;
};

// Updates the units [begin, end) of the list as if its tensors were one.
#if defined(__x86_64__)
namespace AVX2 {
void fused_adagrad(const FusedAdagradParams& params, int64_t begin, int64_t end);
}
#endif

}  // namespace aten_ext::cpu
