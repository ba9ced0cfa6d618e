// The fused kernel as an event of the profiler.
#pragma once

#include <ATen/record_function.h>
#include <c10/macros/Macros.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/choice.h"
#include "watch/signature.h"

namespace aten_ext {

// What active profilers want to be told; usually none is, which costs a look at thread-local variables.
// Scope FUNCTION, as operators are: kernels on the GPU are then this event's, it is a child of aten::<op>,
// and self times count everything once.
inline std::optional<at::StepCallbacks> profiler_callbacks() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

// S::run inside an event.
template <class S, class Plan>
C10_NOINLINE Ran<typename S::Result> recorded(const typename S::Args& arguments, const Plan& plan,
                                              at::StepCallbacks&& callbacks) {
  at::RecordFunction event(std::move(callbacks));
  const std::string_view name = S::kEvent;
  std::vector<c10::IValue> inputs;
  if (event.needsInputs()) {
    inputs = S::unpack(arguments, [](const auto&... each) { return box(each...); });
    event.before(name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  } else {
    event.before(name);
  }
  return S::run(arguments, plan);
}

// The same, if there is a profiler.
template <class S, class Plan>
C10_ALWAYS_INLINE Ran<typename S::Result> profiled(const typename S::Args& arguments, const Plan& plan) {
  if (auto callbacks = profiler_callbacks(); C10_UNLIKELY(callbacks.has_value())) {
    return recorded<S>(arguments, plan, std::move(*callbacks));
  }
  return S::run(arguments, plan);
}

}  // namespace aten_ext
