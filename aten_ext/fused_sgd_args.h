// What the CPU and the CUDA side of _fused_sgd_ share: the arguments of the operators, and the rule about
// their tensor lists.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tensor_list_args.h"

// The two overloads differ in the type of the learning rate.
#define ATEN_EXT_FUSED_SGD_PARAMETERS(LrType)                                                              \
  [[maybe_unused]] at::TensorList params, [[maybe_unused]] at::TensorList grads,                           \
      [[maybe_unused]] at::TensorList momentum_buffers, [[maybe_unused]] double weight_decay,              \
      [[maybe_unused]] double momentum, [[maybe_unused]] LrType lr, [[maybe_unused]] double dampening,     \
      [[maybe_unused]] bool nesterov, [[maybe_unused]] bool maximize, [[maybe_unused]] bool is_first_step, \
      [[maybe_unused]] const std::optional<at::Tensor>&grad_scale,                                         \
      [[maybe_unused]] const std::optional<at::Tensor>&found_inf

namespace aten_ext {

struct FusedSgdScalars {
  double weight_decay, momentum, lr, dampening;
  bool nesterov, maximize, is_first_step;
};

// nullptr, or the reason why upstream runs. There are momentum buffers where there is momentum, and nowhere
// else.
inline const char* decline_fused_sgd(at::TensorList params, at::TensorList grads,
                                     at::TensorList momentum_buffers, double momentum,
                                     const std::optional<at::Tensor>& grad_scale,
                                     const std::optional<at::Tensor>& found_inf) {
  if (momentum != 0) {
    return decline_tensor_lists(params, grads, {momentum_buffers}, nullptr, grad_scale, found_inf);
  }
  if (!params.empty() && !momentum_buffers.empty()) {
    return "lists of different lengths";
  }
  return decline_tensor_lists(params, grads, {}, nullptr, grad_scale, found_inf);
}

}  // namespace aten_ext
