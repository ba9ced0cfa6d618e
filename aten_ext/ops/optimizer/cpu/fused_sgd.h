// Bridge between the ATen side of the fused SGD step on CPU (fused_sgd.cpp) and its kernel, which is compiled
// with AVX2 (fused_sgd_kernel.cpp). No ATen here.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "ops/optimizer/cpu/tensor_list.h"

namespace aten_ext::cpu {

enum SgdList { kMomentumBuffer = kFirstState, kSgdLists };  // the last with momentum

struct FusedSgdParams {
  const FlatTensors<kSgdLists>* tensors;  // [count], at least one
  int64_t count;
  Dtype dtype;  // Float or Double
  bool nesterov;
  bool maximize;
  bool is_first_step;  // momentum buffers are written without being read
  bool has_grad_scale;
  float grad_scale;
  double weight_decay, momentum, lr, dampening;
};

// Updates the units [begin, end) of the list as if its tensors were one.
#if defined(__x86_64__)
namespace AVX2 {
void fused_sgd(const FusedSgdParams& params, int64_t begin, int64_t end);
}
#endif

}  // namespace aten_ext::cpu
