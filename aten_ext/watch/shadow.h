// Shadow mode: run upstream beside the fused kernel, on copies of what the call writes to, and compare.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/macros/Macros.h>

#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/capture.h"
#include "core/choice.h"
#include "core/registry.h"
#include "watch/compare.h"
#include "watch/profiled.h"
#include "watch/signature.h"
#include "watch/twins.h"
#include "watch/watch.h"

namespace aten_ext {

// Whether this thread is in shadow mode's own work. Entries then go upstream and count nothing.
bool is_internal();

// While one exists, what this thread calls is shadow mode's own: below autograd and autocast, uncounted, and
// in a profile one event, aten_ext::shadow; in a forked child on one thread.
class Internal {
 public:
  Internal();
  ~Internal();
  Internal(const Internal&) = delete;
  Internal& operator=(const Internal&) = delete;

 private:
  bool before_;
  int threads_ = 0;
  c10::impl::ExcludeDispatchKeyGuard exclude_;
  at::RecordFunction event_;
};

// Gives upstream the random numbers that the fused kernel drew, and leaves the generator as that left it.
class Randomness {
 public:
  // `given`: the generator among the call's arguments; otherwise the default one of `device`.
  Randomness(bool used, at::Device device, std::optional<at::Generator> given);
  ~Randomness();
  Randomness(const Randomness&) = delete;
  Randomness& operator=(const Randomness&) = delete;
  void rewind();

 private:
  std::optional<at::Generator> generator_;
  at::Tensor before_;
  at::Tensor after_;
};

// Does `work` as the watch's own. False when it raises an error, which goes no further than failed(what).
template <class Work, class Failed>
bool attempt_internally(const Work& work, const Failed& failed) {
  try {
    const Internal internal;
    work();
    return true;
  } catch (const std::exception& error) {
    failed(error.what());
  } catch (...) {
    failed("an exception of unknown type");
  }
  return false;
}

// What becomes of one shadowed call.
class ShadowCall {
 public:
  ShadowCall(Watch& watch, const Override& row, std::string signature);
  void captured();
  void compared(const std::vector<Pair>& pairs);
  // Do `work` as shadow mode's own. False, and counted, when it raises an error, which goes no further.
  template <class Work>
  bool attempt(const Work& work) {
    return attempt_internally(work, [this](const char* what) { failed(what); });
  }

 private:
  void failed(const char* what);
  Watch& watch_;
  ShadowRow row_;
};

// Pair the tensors of an argument, or of a result, with upstream's.
template <class T>
void pair_up(const std::string& name, const T& ours, const T& theirs, std::vector<Pair>& pairs) {
  const size_t first = pairs.size();
  const auto numbered = [&name](int64_t i) { return i < 0 ? name : name + '[' + std::to_string(i) + ']'; };
  each_tensor(ours, [&](const at::Tensor& t, int64_t i) { pairs.push_back({numbered(i), t, {}}); });
  size_t next = first;
  each_tensor(theirs, [&](const at::Tensor& t, int64_t i) {
    if (next == pairs.size()) {  // a list that is longer
      pairs.push_back({numbered(i), {}, {}});
    }
    pairs[next++].theirs = t;
  });
}

// Of a tuple those results that mean something to others.
template <class... T, size_t... I>
void pair_up_each(const bool* opaque, const std::tuple<T...>& ours, const std::tuple<T...>& theirs,
                  std::vector<Pair>& pairs, std::index_sequence<I...> /*positions*/) {
  ((opaque[I] ? void()
              : pair_up("result" + std::to_string(I), std::get<I>(ours), std::get<I>(theirs), pairs)),
   ...);
}
template <class... T>
void pair_up_results(const bool* opaque, const std::tuple<T...>& ours, const std::tuple<T...>& theirs,
                     std::vector<Pair>& pairs) {
  pair_up_each(opaque, ours, theirs, pairs, std::index_sequence_for<T...>{});
}
template <class T>
void pair_up_results(const bool* opaque, const T& ours, const T& theirs, std::vector<Pair>& pairs) {
  if (!opaque[0]) {
    pair_up("result", ours, theirs, pairs);
  }
}

// The types of an override's arguments, in their order.
template <class... A>
struct Types {};

// Twins of all arguments of one call.
template <class... A>
using TwinsOf = std::tuple<Twin<A>...>;

// The arguments that the operator writes to, with their twins.
template <class S, class... A, size_t... I>
std::vector<Pair> pair_up_written(TwinsOf<A...>& twins, std::index_sequence<I...> /*positions*/,
                                  const A&... arguments) {
  std::vector<Pair> pairs;
  ((S::kWritten[I] ? pair_up<std::decay_t<A>>(S::kNames[I], arguments, std::get<I>(twins).get(), pairs)
                   : void()),
   ...);
  return pairs;
}

// Give the user's tensors upstream's values.
void overwrite(const std::vector<Pair>& pairs);

// The comparison by itself, behind torch.ops.aten_ext.compare_lists: elements, different, nan, layouts,
// max_absolute, max_relative, max_ulp, worst ("tensor[3]"), layout.
std::tuple<int64_t, int64_t, int64_t, int64_t, double, double, double, std::string, std::string>
compare_lists(at::TensorList ours, at::TensorList theirs);

// The generator among arguments.
inline std::optional<at::Generator> find_generator() {
  return std::nullopt;
}
template <class First, class... Rest>
std::optional<at::Generator> find_generator(const First& first, const Rest&... rest) {
  if constexpr (std::is_same_v<First, std::optional<at::Generator>>) {
    if (first.has_value() && first->defined()) {
      return first;
    }
  }
  return find_generator(rest...);
}

// T where it is given and not to be deduced (C++20: std::type_identity_t).
template <class T>
struct GivenType {
  using type = T;
};
template <class T>
using Given = typename GivenType<T>::type;

// References, and tuples of them, are to arguments.
template <class R>
inline constexpr bool returns_arguments = std::is_void_v<R> || std::is_reference_v<R>;
template <class... T>
inline constexpr bool returns_arguments<std::tuple<T...>> = (std::is_reference_v<T> && ...);

// A call of the fused kernel with upstream's beside it. Whatever goes wrong with the latter is written down
// and changes nothing for the caller. A refused launch is not compared.
template <class S, class Plan, class... A>
C10_NOINLINE Ran<typename S::Result> shadowed_as(Types<A...> /*types*/,
                                                 const typename S::Args& call_arguments, const Plan& plan,
                                                 Given<A>... arguments) {
  using R = typename S::Result;
  ShadowCall call(S::watch(), S::row(), signature(box(arguments...), S::kNames));
  std::optional<at::Device> device;
  const auto note_device = [&](const at::Tensor& t, int64_t) {
    device = device.has_value() || !t.defined() ? device : t.device();
  };
  (each_tensor(arguments, note_device), ...);
  if (device.has_value() && is_capturing(*device)) {
    call.captured();
    return profiled<S>(call_arguments, plan);
  }

  std::optional<TwinsOf<A...>> twin_arguments;
  std::optional<Randomness> randomness;
  const bool prepared = call.attempt([&] {
    Twins twins;
    size_t i = 0;
    const auto note = [&](const at::Tensor& t, int64_t) {
      S::kWritten[i] ? twins.writes(t) : twins.reads(t);
    };
    ((each_tensor(arguments, note), ++i), ...);
    twins.make();
    twin_arguments.emplace(Twin<A>(twins, arguments)...);
    randomness.emplace(S::kRandom, device.value_or(at::kCPU), find_generator(arguments...));
  });
  Ran<R> ours = profiled<S>(call_arguments, plan);
  if (!prepared || ours.refused()) {
    return ours;
  }

  const auto upstream = [&]() -> R {
    randomness->rewind();
    return std::apply([](Twin<A>&... twin) -> R { return S::upstream(twin.get()...); }, *twin_arguments);
  };
  const auto written_pairs = [&] {
    return pair_up_written<S, A...>(*twin_arguments, std::index_sequence_for<A...>{}, arguments...);
  };
  if constexpr (returns_arguments<R>) {
    call.attempt([&] {
      upstream();
      const std::vector<Pair> written = written_pairs();
      call.compared(written);
      if (S::watch().keeps_upstream()) {
        overwrite(written);
      }
    });
    return ours;
  } else {
    R result = ours.take();
    call.attempt([&] {
      R theirs = upstream();
      const std::vector<Pair> written = written_pairs();
      std::vector<Pair> pairs = written;
      pair_up_results(S::kOpaque, result, theirs, pairs);
      call.compared(pairs);
      if (S::watch().keeps_upstream()) {
        overwrite(written);
        result = std::move(theirs);
      }
    });
    return result;
  }
}

template <class S, class Plan>
Ran<typename S::Result> shadowed(const typename S::Args& arguments, const Plan& plan) {
  return S::unpack(arguments, [&](auto&&... each) {
    return shadowed_as<S>(typename S::ArgumentTypes{}, arguments, plan,
                          std::forward<decltype(each)>(each)...);
  });
}

}  // namespace aten_ext
