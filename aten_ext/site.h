// One override's entry, seen by what watches it: what it is called, what it calls, what it writes to.
#pragma once

#include <cstddef>

#include "registry.h"
#include "watch.h"

namespace aten_ext {

// Constant data about one override, whatever its arguments are.
struct SiteBase {
  Override& override;
  Watch& watch;
  const char* event;         // its name in a profile: "aten_ext::cat.out"
  const char* const* names;  // of the arguments, as in the schema
  const bool* written;       // which arguments the operator writes to
  const bool* opaque;        // which results only the same implementation can read: not compared
  bool random;               // it draws from a generator
};

// T where it is given and not to be deduced (C++20: std::type_identity_t).
template <class T>
struct GivenType {
  using type = T;
};
template <class T>
using Given = typename GivenType<T>::type;

// The same with its functions. Deduced from decline, run and upstream, whose arguments are the same.
template <class R, class... Arguments>
struct Site : SiteBase {
  constexpr Site(SiteBase base, const char* (*decline)(Arguments...), R (*run)(Arguments...),
                 R (*upstream)(Arguments...))
      : SiteBase(base), decline(decline), run(run), upstream(upstream) {}

  const char* (*decline)(Arguments...);
  R (*run)(Arguments...);
  R (*upstream)(Arguments...);
};

}  // namespace aten_ext
