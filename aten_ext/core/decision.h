// The decision about one call, made once: by its entry, or by watched() in the entry's place.
//
// S is what the generator knows of an override at a dispatch key (scripts/codegen.py, _site): Args, Result,
// row(), choose(), run(), upstream(), and kPaired, whether it is the backward of another override.
#pragma once

#include <c10/util/Exception.h>

#include <optional>
#include <type_traits>

#include "core/choice.h"
#include "core/registry.h"
#include "watch/watch.h"

namespace aten_ext {

// Whether the call is the backward of a forward that ran here: only we can read what that one kept.
template <class S>
bool saved_by_ours([[maybe_unused]] const typename S::Args& arguments) {
  if constexpr (S::kPaired) {
    return S::saved_by_ours(arguments);
  } else {
    return false;
  }
}

template <class S>
using ChoiceOf = decltype(S::choose(std::declval<const typename S::Args&>()));

// Whether the rule is not even asked. Disabled or not, a backward goes to the implementation whose forward it
// follows.
template <class S>
bool is_disabled(const typename S::Args& arguments) {
  return !S::row().enabled.load(std::memory_order_relaxed) && !saved_by_ours<S>(arguments);
}

// What becomes of a call that is not disabled. The choice is made where the caller wants it: a copy would
// read what has just been written by other loads than it was stored with, which takes longer than all the
// rest.
template <class S>
C10_ALWAYS_INLINE ChoiceOf<S> choose(const typename S::Args& arguments) {
  if constexpr (S::kPaired) {
    if (!S::saved_by_ours(arguments)) {
      return "forward that ran upstream";
    }
    ChoiceOf<S> choice = S::choose(arguments);
    TORCH_CHECK(choice.reason() == nullptr, "[", S::row().name,
                "] expected the arguments of the forward that aten_ext ran, got: ", choice.reason());
    return choice;
  } else {
    return S::choose(arguments);
  }
}

// The driver refused the launch, and nothing was written.
template <class S>
typename S::Result late(const typename S::Args& arguments) {
  S::row().counts.add_late();
  TORCH_CHECK(!saved_by_ours<S>(arguments), "[", S::row().name,
              "] expected the GPU to take the launch, as it took that of the forward, got a refusal");
  return S::unpack(arguments, S::upstream);
}

}  // namespace aten_ext
