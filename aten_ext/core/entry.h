// What every generated entry does.
//
//   disabled?            -> count -> upstream    (not for a backward whose forward was ours)
//   choose() = reason    -> count -> upstream
//   choose() = plan      -> run() -> count
//                           run() refused -> count -> upstream
#pragma once

#include <c10/macros/Macros.h>

#include "core/decision.h"
#include "watch/profiled.h"
#include "watch/watched.h"

namespace aten_ext {

// `arguments`: references to the caller's.
template <class S>
C10_ALWAYS_INLINE typename S::Result enter(const typename S::Args& arguments) {
  if (C10_UNLIKELY(S::watch().bits.load(std::memory_order_relaxed) != 0)) {
    return watched<S>(arguments);
  }
  Override& row = S::row();
  const auto decision = decide<S>(arguments);
  if (decision.route != Route::kFused) {
    decision.route == Route::kDisabled ? row.counts.add_disabled()
                                       : row.counts.add_declined(decision.choice.reason());
    return S::upstream(arguments);
  }
  Ran<typename S::Result> ran = profiled<S>(arguments, decision.choice.plan());
  if (C10_UNLIKELY(ran.refused())) {
    return late<S>(arguments);
  }
  row.counts.add_ran();
  return static_cast<typename S::Result>(ran.take());
}

}  // namespace aten_ext
