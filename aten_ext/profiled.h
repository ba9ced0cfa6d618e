// The fused kernel as an event of the profiler.
#pragma once

#include <ATen/record_function.h>
#include <c10/macros/Macros.h>

#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "signature.h"
#include "site.h"

namespace aten_ext {

// What active profilers want to be told; usually none is, which costs a look at thread-local variables.
// Scope FUNCTION, as operators are: kernels on the GPU are then this event's, it is a child of aten::<op>,
// and self times count everything once.
inline std::optional<at::StepCallbacks> profiler_callbacks() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}

// Scope FUNCTION, as operators are: kernels on the GPU are then this event's, it is a child of aten::<op>,
// and self times count everything once.
template <class R, class... A>
C10_NOINLINE R recorded(const Site<R, A...>& site, at::StepCallbacks&& callbacks, Given<A>... arguments) {
  at::RecordFunction event(std::move(callbacks));
  const std::string_view name = site.event;
  std::vector<c10::IValue> inputs;
  if (event.needsInputs()) {
    inputs = box(arguments...);
    event.before(name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  } else {
    event.before(name);
  }
  return site.run(arguments...);
}

// The same, if there is a profiler.
template <class R, class... A>
R profiled(const Site<R, A...>& site, Given<A>... arguments) {
  if (auto callbacks = profiler_callbacks(); C10_UNLIKELY(callbacks.has_value())) {
    return recorded(site, std::move(*callbacks), arguments...);
  }
  return site.run(arguments...);
}

}  // namespace aten_ext
