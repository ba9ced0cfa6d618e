// What an entry does out of line while somebody watches: a trace, shadow mode, or times.
#pragma once

#include <c10/macros/Macros.h>

#include "core/composite.h"
#include "core/decision.h"
#include "watch/profiled.h"
#include "watch/shadow.h"
#include "watch/signature.h"
#include "watch/timed.h"

namespace aten_ext {

// Whether ours would bring an autograd node: shadow mode compares results, not graphs.
template <class S>
bool brings_node([[maybe_unused]] const typename S::Args& arguments) {
  if constexpr (S::kOwnNode) {
    return S::unpack(arguments, [](const auto&... each) { return (is_differentiated(each) || ...); });
  } else {
    return false;
  }
}

// The whole entry, with everything that is written down about its call.
template <class S>
C10_NOINLINE typename S::Result watched(const typename S::Args& arguments) {
  // A call that shadow mode makes itself goes upstream, unless upstream could not read what it is given.
  if (is_internal() && !saved_by_ours<S>(arguments)) {
    return S::unpack(arguments, S::upstream);
  }
  Override& row = S::row();
  CallNote note(S::watch());
  const auto trace = [&](Route route, const char* reason) {
    if (S::watch().traces() && !is_internal()) {
      note.pause();
      const auto boxed = S::unpack(arguments, [](const auto&... each) { return box(each...); });
      note.set(CallRow{row.name, row.key, route, reason, signature(boxed, S::kNames), 1});
    }
  };
  const bool times = S::watch().times() && !is_internal();
  const uint64_t began = times ? nanoseconds() : 0;
  if (is_disabled<S>(arguments)) {
    row.counts.add_disabled();
    trace(Route::kDisabled, "");
    return S::unpack(arguments, S::upstream);
  }
  const auto choice = choose<S>(arguments);
  const uint64_t deciding = times ? nanoseconds() - began : 0;
  if (choice.reason() != nullptr) {
    row.counts.add_declined(choice.reason());
    trace(Route::kDeclined, choice.reason());
    return S::unpack(arguments, S::upstream);
  }
  const auto& plan = choice.plan();
  const bool comparable = !is_internal() && !S::kPaired && !brings_node<S>(arguments);
  const bool shadows = comparable && S::watch().samples();
  Ran<typename S::Result> ran = shadows ? shadowed<S>(arguments, plan)
                                : times ? timed<S>(arguments, plan, deciding, comparable)
                                        : profiled<S>(arguments, plan);
  if (times && shadows) {
    count_shadowed(S::watch(), row);
  }
  if (ran.refused()) {
    trace(Route::kLate, "");
    return late<S>(arguments);
  }
  row.counts.add_ran();
  trace(Route::kFused, "");
  return static_cast<typename S::Result>(ran.take());
}

}  // namespace aten_ext
