// What every generated entry does.
//
//   disabled?            -> count -> upstream    (not for a backward whose forward was ours)
//   choose() = reason    -> count -> upstream
//   choose() = plan      -> run() -> count
//                           run() refused -> count -> upstream
//
// A call that ends up upstream shall cost next to nothing, and most of that would be moving its arguments
// about. So an entry stores none of them: it looks at two words and jumps, with the arguments where the
// dispatcher has put them.
#pragma once

#include <c10/macros/Export.h>
#include <c10/macros/Macros.h>

#include <type_traits>
#include <utility>

#include "core/decision.h"
#include "watch/profiled.h"
#include "watch/watched.h"

namespace aten_ext {

// From here on the argument is what was stored of it, which saves keeping it beside that.
template <class T, class U>
C10_ALWAYS_INLINE void take_back([[maybe_unused]] T& argument, [[maybe_unused]] const U& stored) {
  if constexpr (std::is_trivially_copyable_v<T> && !std::is_const_v<T>) {
    argument = stored;
  }
}

// An entry and the three functions that it may jump to. All take the operator's arguments.
template <class S, class Arguments = typename S::ArgumentTypes>
struct Entry;

template <class S, class... A>
struct C10_HIDDEN Entry<S, Types<A...>> {
  using Result = typename S::Result;
  using Args = typename S::Args;

  C10_ALWAYS_INLINE static Result call(A&... arguments) {
    // A table, not branches: with one jump in one place GCC leaves arguments on the stack alone; with several
    // it loads and stores them all.
    static constexpr Result (*kParts[])(A...) = {&skip, &ask, &watch, &watch};
    const unsigned watches = S::watch().bits.load(std::memory_order_relaxed) != 0;
    const unsigned asks = S::kPaired || S::row().enabled.load(std::memory_order_relaxed);
    Result (*const next)(A...) = kParts[2 * watches + asks];
    return next(std::forward<A>(arguments)...);
  }

 private:
  C10_NOINLINE static Result watch(A... arguments) {
    return watched<S>(Args{arguments...});
  }

  C10_NOINLINE static Result skip(A... arguments) {
    S::row().counts.add_disabled();
    return S::upstream(std::forward<A>(arguments)...);
  }

  C10_NOINLINE static Result ask(A... arguments) {
    Counts& counts = S::row().counts;
    {
      // What is stored is out of scope before the last line, which can then be a jump.
      Args stored{arguments...};
      if constexpr (S::kPaired) {
        if (is_disabled<S>(stored)) {
          counts.add_disabled();
          return S::upstream(std::forward<A>(arguments)...);
        }
      }
      const auto choice = choose<S>(stored);
      if (choice.reason() == nullptr) {
        Ran<Result> ran = profiled<S>(stored, choice.plan());
        if (C10_UNLIKELY(ran.refused())) {
          return late<S>(stored);
        }
        counts.add_ran();
        return static_cast<Result>(ran.take());
      }
      counts.add_declined(choice.reason());
      S::unpack(stored, [&](auto&... each) { (take_back(arguments, each), ...); });
    }
    return S::upstream(std::forward<A>(arguments)...);
  }
};

template <class S, class... Arguments>
C10_ALWAYS_INLINE typename S::Result enter(Arguments&... arguments) {
  return Entry<S>::call(arguments...);
}

}  // namespace aten_ext
