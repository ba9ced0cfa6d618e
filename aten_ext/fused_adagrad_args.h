// What the CPU and the CUDA side of _fused_adagrad_ share: the arguments of the operators, and the rule about
// their tensor lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tensor_list_args.h"

// The two overloads differ in the type of the learning rate.
#define ATEN_EXT_FUSED_ADAGRAD_PARAMETERS(LrType)                                                         \
  [[maybe_unused]] at::TensorList params, [[maybe_unused]] at::TensorList grads,                          \
      [[maybe_unused]] at::TensorList state_sums, [[maybe_unused]] at::TensorList steps,                  \
      [[maybe_unused]] LrType lr, [[maybe_unused]] double lr_decay, [[maybe_unused]] double weight_decay, \
      [[maybe_unused]] double eps, [[maybe_unused]] bool maximize,                                        \
      [[maybe_unused]] const std::optional<at::Tensor>&grad_scale,                                        \
      [[maybe_unused]] const std::optional<at::Tensor>&found_inf

namespace aten_ext {

struct FusedAdagradScalars {
  double lr, lr_decay, weight_decay, eps;
  bool maximize;
};

// nullptr, or the reason why upstream runs.
inline const char* decline_fused_adagrad(at::TensorList params, at::TensorList grads,
                                         at::TensorList state_sums, at::TensorList steps,
                                         const std::optional<at::Tensor>& grad_scale,
                                         const std::optional<at::Tensor>& found_inf) {
  return decline_tensor_lists(params, grads, {state_sums}, &steps, grad_scale, found_inf);
}

}  // namespace aten_ext
