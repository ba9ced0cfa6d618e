// What an entry does out of line while somebody watches: a trace, or shadow mode.
#pragma once

#include <c10/macros/Macros.h>

#include <type_traits>

#include "profiled.h"
#include "shadow.h"
#include "signature.h"
#include "site.h"

namespace aten_ext {

// The whole entry, with everything that is written down about its call.
template <class R, class... A>
C10_NOINLINE R watched(const Site<R, A...>& site, Given<A>... arguments) {
  if (is_internal()) {  // a call that shadow mode makes itself
    return site.upstream(arguments...);
  }
  const auto trace = [&](Route route, const char* reason) {
    if (site.watch.traces()) {
      site.watch.add(CallRow{site.override.name, site.override.key, route, reason,
                             signature(box(arguments...), site.names), 1});
    }
  };
  if (!site.override.enabled.load(std::memory_order_relaxed)) {
    site.override.counts.add_disabled();
    trace(Route::kDisabled, "");
    return site.upstream(arguments...);
  }
  if (const char* reason = site.decline(arguments...)) {
    site.override.counts.add_declined(reason);
    trace(Route::kDeclined, reason);
    return site.upstream(arguments...);
  }
  site.override.counts.add_ran();
  trace(Route::kFused, "");
  if (site.watch.samples()) {
    return shadowed(site, arguments...);
  }
  return profiled(site, arguments...);
}

}  // namespace aten_ext
