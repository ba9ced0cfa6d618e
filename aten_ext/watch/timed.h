// How long fused calls take, and beside some of them upstream: what aten_ext.report() adds up.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/capture.h"
#include "core/registry.h"
#include "watch/profiled.h"
#include "watch/shadow.h"
#include "watch/twins.h"
#include "watch/watch.h"

namespace aten_ext {

// The CPU's monotonic clock.
uint64_t nanoseconds();

// The time between start() and stop(): of the CPU, or of the GPU between two events of the current stream.
// Neither waits for the GPU.
class Stopwatch {
 public:
  explicit Stopwatch(std::optional<at::Device> device);
  ~Stopwatch();
  Stopwatch(Stopwatch&&) noexcept;
  Stopwatch& operator=(Stopwatch&&) noexcept;
  void start();
  void stop();
  bool on_gpu() const {
    return events_ != nullptr;
  }
  // Microseconds; nothing where the GPU has not come to stop() yet and the caller will not wait.
  std::optional<double> read(bool wait);

 private:
  struct Events;
  std::unique_ptr<Events> events_;
  uint64_t started_ = 0;
  uint64_t nanoseconds_ = 0;
};

// What becomes of one timed call. While one exists, fused calls of this thread are inside it.
class TimedCall {
 public:
  TimedCall(Watch& watch, const Override& row, bool comparable);
  ~TimedCall();
  TimedCall(const TimedCall&) = delete;
  TimedCall& operator=(const TimedCall&) = delete;
  bool is_inside() const {
    return inside_;
  }
  void inside();
  void captured();
  // `deciding`: nanoseconds that the rule took, which counts as ours on the CPU.
  void took(Stopwatch ours, uint64_t deciding, std::optional<Stopwatch> upstream);
  // As ShadowCall::attempt.
  template <class Work>
  bool attempt(const Work& work) {
    return attempt_internally(work, [this](const char* what) { failed(what); });
  }

 private:
  void failed(const char* what);
  Watch& watch_;
  TimeRow row_;
  bool inside_;
};

// Leaves a generator as it was found: upstream's numbers are nobody's.
class KeptGenerator {
 public:
  KeptGenerator(bool used, at::Device device, std::optional<at::Generator> given);
  ~KeptGenerator();
  KeptGenerator(const KeptGenerator&) = delete;
  KeptGenerator& operator=(const KeptGenerator&) = delete;

 private:
  std::optional<at::Generator> generator_;
  at::Tensor state_;
};

// A row of the trace: added at once, or for a session that asks for sites when the call is over, with its
// time.
class CallNote {
 public:
  explicit CallNote(Watch& watch);
  ~CallNote();
  CallNote(const CallNote&) = delete;
  CallNote& operator=(const CallNote&) = delete;
  void pause();  // what follows, up to set(), is not the call's time
  void set(CallRow row);

 private:
  Watch& watch_;
  bool sites_;
  uint64_t began_;
  uint64_t spent_ = 0;
  std::optional<CallRow> row_;
};

void count_shadowed(Watch& watch, const Override& row);

// A call of the fused kernel with a clock beside it and, where it is drawn, a call of upstream on copies of
// what the call writes to. Which of the two goes first is drawn, too: the second finds a warm cache.
// Whatever goes wrong with upstream is written down and changes nothing for the caller.
template <class S, class Plan, class... A>
C10_NOINLINE Ran<typename S::Result> timed_as(Types<A...> /*types*/, const typename S::Args& call_arguments,
                                              const Plan& plan, uint64_t deciding, bool comparable,
                                              Given<A>... arguments) {
  TimedCall call(S::watch(), S::row(), comparable);
  if (call.is_inside()) {
    Ran<typename S::Result> ran = profiled<S>(call_arguments, plan);
    if (!ran.refused()) {
      call.inside();
    }
    return ran;
  }
  std::optional<at::Device> device;
  const auto note_device = [&](const at::Tensor& t, int64_t) {
    device = device.has_value() || !t.defined() || t.is_cpu() ? device : t.device();
  };
  (each_tensor(arguments, note_device), ...);
  if (device.has_value() && is_capturing(*device)) {
    Ran<typename S::Result> ran = profiled<S>(call_arguments, plan);
    if (!ran.refused()) {
      call.captured();
    }
    return ran;
  }

  Stopwatch ours(device);
  const auto run = [&] {
    ours.start();
    Ran<typename S::Result> ran = profiled<S>(call_arguments, plan);
    ours.stop();
    return ran;
  };
  std::optional<Stopwatch> upstream;
  std::optional<TwinsOf<A...>> twin_arguments;
  const bool samples = comparable && S::watch().samples_upstream() && call.attempt([&] {
    Twins twins;
    size_t i = 0;
    const auto note = [&](const at::Tensor& t, int64_t) {
      S::kWritten[i] ? twins.writes(t) : twins.reads(t);
    };
    ((each_tensor(arguments, note), ++i), ...);
    twins.make();
    twin_arguments.emplace(Twin<A>(twins, arguments)...);
  });
  const auto call_upstream = [&] {
    const bool done = call.attempt([&] {
      const KeptGenerator kept(S::kRandom, device.value_or(at::kCPU), find_generator(arguments...));
      upstream.emplace(device);
      upstream->start();
      std::apply([&](Twin<A>&... twin) { static_cast<void>(S::upstream(twin.get()...)); }, *twin_arguments);
      upstream->stop();
    });
    if (!done) {
      upstream.reset();
    }
  };
  const bool upstream_first = samples && S::watch().upstream_first();
  if (upstream_first) {
    call_upstream();
  }
  Ran<typename S::Result> ran = run();
  if (ran.refused()) {
    return ran;
  }
  if (samples && !upstream_first) {
    call_upstream();
  }
  call.took(std::move(ours), deciding, std::move(upstream));
  return ran;
}

template <class S, class Plan>
Ran<typename S::Result> timed(const typename S::Args& arguments, const Plan& plan, uint64_t deciding,
                              bool comparable) {
  return S::unpack(arguments, [&](auto&&... each) {
    return timed_as<S>(typename S::ArgumentTypes{}, arguments, plan, deciding, comparable,
                       std::forward<decltype(each)>(each)...);
  });
}

}  // namespace aten_ext
