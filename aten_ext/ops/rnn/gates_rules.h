// Rules that the operators of a step's gates share: _thnn_fused_gru_cell, _thnn_fused_lstm_cell and their
// backwards.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>

#include "core/dtype.h"
#include "core/gpu.h"
#include "ops/rnn/checks.h"
#include "ops/rnn/gates_backward.h"
#include "ops/rnn/gates_facts.h"
#include "ops/rnn/overrides.h"

namespace aten_ext::cuda {

inline const char* decline_gates_dtype(const at::Tensor& t) {
  return is_rnn_dtype(t) || t.scalar_type() == at::kDouble
             ? nullptr
             : "dtype other than float32, float16, bfloat16, float64";
}

inline const char* decline_gates_size(const at::Tensor& state) {
  if (state.numel() == 0) {
    return "empty input";
  }
  return state.numel() > std::numeric_limits<int32_t>::max() ? "sizes beyond 32 bits" : nullptr;
}

// A forward of `gates` gates: products and biases beside the state.
inline const char* decline_gates(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                 const at::Tensor& state, const std::optional<at::Tensor>& input_bias,
                                 const std::optional<at::Tensor>& hidden_bias, int64_t gates) {
  if (!input_gates.defined() || !hidden_gates.defined() || !state.defined()) {
    return "undefined tensor";
  }
  if (const char* reason = decline_gates_dtype(input_gates)) {
    return reason;
  }
  if (is_given(input_bias) != is_given(hidden_bias)) {
    return "one bias of two";
  }
  for (const at::Tensor* t : {&input_gates, &hidden_gates, &state}) {
    if (const char* reason = decline_beside(*t, input_gates)) {
      return reason;
    }
  }
  if (state.dim() != 2 || !has_shape(input_gates, {state.size(0), gates * state.size(1)}) ||
      !has_shape(hidden_gates, {state.size(0), gates * state.size(1)})) {
    return "gates that do not fit the state";
  }
  if (const char* reason = decline_gates_size(state)) {
    return reason;
  }
  bool contiguous = input_gates.is_contiguous() && hidden_gates.is_contiguous() && state.is_contiguous();
  if (is_given(input_bias)) {
    for (const at::Tensor* t : {&*input_bias, &*hidden_bias}) {
      if (const char* reason = decline_beside(*t, input_gates)) {
        return reason;
      }
      if (!has_shape(*t, {gates * state.size(1)})) {
        return "gates that do not fit the state";
      }
      contiguous = contiguous && t->is_contiguous();
    }
  }
  return contiguous ? nullptr : "tensor that is not contiguous";
}

// Units (batch * hidden) from which a thread takes two.
inline int64_t pairs_from(Dtype dtype) {
  return dtype == Dtype::Float ? 0 : dtype == Dtype::Double ? std::numeric_limits<int64_t>::max() : 200'000;
}

// Units of a thread: two, if they are one load everywhere. Results come from the allocator, which aligns to
// more.
inline int units_of_thread(Dtype dtype, const at::Tensor& state, std::initializer_list<const void*> read) {
  uintptr_t bits = 0;
  for (const void* pointer : read) {
    bits |= reinterpret_cast<uintptr_t>(pointer);  // nothing of nullptr
  }
  const bool pairs =
      state.size(1) % 2 == 0 && state.numel() >= pairs_from(dtype) && bits % (2 * state.element_size()) == 0;
  return pairs ? 2 : 1;
}

// Whether two neighbouring units of a gradient that is given are neighbours in memory, in every row.
inline bool has_pairs(const std::optional<at::Tensor>& grad) {
  return !is_given(grad) || (grad->stride(1) == 1 && grad->stride(0) % 2 == 0);
}

inline Incoming incoming(const std::optional<at::Tensor>& grad) {
  return is_given(grad) ? Incoming{grad->const_data_ptr(), grad->stride(0), grad->stride(1)}
                        : Incoming{nullptr, 0, 0};
}

inline GatesBackwardPlan backward_plan(Dtype dtype, const at::Tensor& state, bool biases, int units) {
  constexpr int kBlocksOfMultiprocessor = 4;  // of 256 threads, by their registers
  GatesBackwardPlan plan{};
  plan.dtype = dtype;
  plan.biases = biases;
  plan.batch = state.size(0);
  plan.hidden = state.size(1);
  plan.tile = gates_tile(plan.batch, plan.hidden, units, biases, plan.element(),
                         int64_t{kBlocksOfMultiprocessor} * gpu_of(state.device()).multiprocessors);
  return plan;
}

// Upstream sums biases' gradients with at::sum, whose result is fp32 under autocast.
inline const char* decline_autocast(Dtype dtype, bool biases) {
  const bool casts = biases && (dtype == Dtype::Half || dtype == Dtype::BFloat16);
  return casts && at::autocast::is_autocast_enabled(at::kCUDA) ? "biases of 16 bits under autocast" : nullptr;
}

// Plans of what the kernels take, wherever upstream is as fast; or the reason why they do not.
const char* plan_gates(const args::_thnn_fused_lstm_cell& arguments, GatesPlan& plan);
const char* plan_gates(const args::_thnn_fused_lstm_cell_backward_impl& arguments, GatesBackwardPlan& plan);
const char* plan_gates(const args::_thnn_fused_gru_cell_backward& arguments, GatesBackwardPlan& plan);

// `op`: which of those that gates_facts.h knows.
template <class Plan, class Arguments>
Choice<Plan> choose_gates(const Arguments& arguments, int op) {
  Plan plan{};
  const char* reason = plan_gates(arguments, plan);
  if (reason == nullptr) {
    reason = decline_as_fast({op, plan.dtype, plan.biases, plan.batch, plan.hidden});
  }
  if (reason != nullptr) {
    return reason;
  }
  return plan;
}

}  // namespace aten_ext::cuda
