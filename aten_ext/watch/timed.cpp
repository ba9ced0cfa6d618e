#include "watch/timed.h"

#include <ATen/Context.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <string_view>
#include <vector>

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace aten_ext {

uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

#ifdef ATEN_EXT_WITH_CUDA

struct Stopwatch::Events {
  explicit Events(at::Device on) : device(on) {}
  at::Device device;
  at::cuda::CUDAEvent begin{cudaEventDefault};
  at::cuda::CUDAEvent end{cudaEventDefault};
};

Stopwatch::Stopwatch(std::optional<at::Device> device) {
  if (device.has_value() && device->is_cuda()) {
    events_ = std::make_unique<Events>(*device);
  }
}

void Stopwatch::start() {
  if (events_ == nullptr) {
    started_ = nanoseconds();
    return;
  }
  const c10::cuda::CUDAGuard guard(events_->device);
  events_->begin.record(c10::cuda::getCurrentCUDAStream(events_->device.index()));
}

void Stopwatch::stop() {
  if (events_ == nullptr) {
    nanoseconds_ += nanoseconds() - started_;
    return;
  }
  const c10::cuda::CUDAGuard guard(events_->device);
  events_->end.record(c10::cuda::getCurrentCUDAStream(events_->device.index()));
}

std::optional<double> Stopwatch::read(bool wait) {
  if (events_ == nullptr) {
    return static_cast<double>(nanoseconds_) * 1e-3;
  }
  // Asking is not for a thread while another captures a graph, unless it says so.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed{cudaStreamCaptureModeRelaxed};
  if (wait) {
    events_->end.synchronize();
  } else if (!events_->end.query()) {
    return std::nullopt;
  }
  return static_cast<double>(events_->begin.elapsed_time(events_->end)) * 1e3;
}

#else

struct Stopwatch::Events {};

Stopwatch::Stopwatch(std::optional<at::Device> /*device*/) {}

void Stopwatch::start() {
  started_ = nanoseconds();
}

void Stopwatch::stop() {
  nanoseconds_ += nanoseconds() - started_;
}

std::optional<double> Stopwatch::read(bool /*wait*/) {
  return static_cast<double>(nanoseconds_) * 1e-3;
}

#endif

Stopwatch::~Stopwatch() = default;
Stopwatch::Stopwatch(Stopwatch&&) noexcept = default;
Stopwatch& Stopwatch::operator=(Stopwatch&&) noexcept = default;

namespace {

thread_local bool timing = false;

// Calls whose times the GPU has not told yet, in the order in which they were made.
struct Pending {
  Watch* watch;
  TimeRow row;
  Stopwatch ours;
  std::optional<Stopwatch> upstream;
};
struct Waiting {
  std::mutex mutex;
  std::deque<Pending> calls;
};
constexpr size_t kMaxWaiting = 1024;

// Never freed, as the watch itself.
Waiting& waiting() {
  static auto* const made = new Waiting;
  return *made;
}

void complete(TimeRow& row, double ours, std::optional<double> upstream) {
  row.calls = row.timed = 1;
  row.ours = ours;
  if (row.comparable != 0) {
    row.comparable_ours = ours;
  }
  if (upstream.has_value()) {
    row.sampled = 1;
    row.sum_ours = ours;
    row.sum_upstream = *upstream;
    row.sum_ours_ours = ours * ours;
    row.sum_upstream_upstream = *upstream * *upstream;
    row.sum_ours_upstream = ours * *upstream;
  }
}

// False where it has no time yet.
bool settle_one(Pending& call, bool wait) {
  const std::optional<double> ours = call.ours.read(wait);
  std::optional<double> upstream;
  if (!ours.has_value()) {
    return false;
  }
  if (call.upstream.has_value() && !(upstream = call.upstream->read(wait)).has_value()) {
    return false;
  }
  complete(call.row, *ours, upstream);
  call.watch->add(call.row);
  return true;
}

// Reads what is there. Waits for the oldest only where too many wait already.
void settle(bool wait) {
  Waiting& all = waiting();
  const std::lock_guard lock(all.mutex);
  while (!all.calls.empty() && settle_one(all.calls.front(), wait || all.calls.size() > kMaxWaiting)) {
    all.calls.pop_front();
  }
}

}  // namespace

TimedCall::TimedCall(Watch& watch, const Override& row, bool comparable) : watch_(watch), inside_(timing) {
  row_.override = row.name;
  row_.key = row.key;
  row_.comparable = comparable ? 1 : 0;
  timing = true;
}

TimedCall::~TimedCall() {
  timing = inside_;
}

void TimedCall::inside() {
  row_.calls = row_.inside = 1;
  row_.comparable = 0;
  watch_.add(row_);
}

void TimedCall::captured() {
  row_.calls = row_.captured = 1;
  row_.comparable = 0;
  watch_.add(row_);
}

void TimedCall::took(Stopwatch ours, uint64_t deciding, std::optional<Stopwatch> upstream) {
  if (!ours.on_gpu()) {
    const std::optional<double> theirs = upstream.has_value() ? upstream->read(true) : std::nullopt;
    complete(row_, *ours.read(true) + static_cast<double>(deciding) * 1e-3, theirs);
    watch_.add(row_);
    return;
  }
  watch_.settle_times.store([] { settle(true); }, std::memory_order_release);
  {
    Waiting& all = waiting();
    const std::lock_guard lock(all.mutex);
    all.calls.push_back({&watch_, std::move(row_), std::move(ours), std::move(upstream)});
  }
  settle(false);
}

void TimedCall::failed(const char* what) {
  const std::string_view text = what;
  row_.failed = 1;
  row_.error = text.substr(0, text.find('\n'));  // the rest is a stack trace
}

KeptGenerator::KeptGenerator(bool used, at::Device device, std::optional<at::Generator> given) {
  if (used) {
    generator_ = given.has_value() ? given : at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator_->mutex());
    state_ = generator_->get_state();
  }
}

KeptGenerator::~KeptGenerator() {
  if (generator_.has_value()) {
    const std::lock_guard lock(generator_->mutex());
    generator_->set_state(state_);
  }
}

CallNote::CallNote(Watch& watch) : watch_(watch), sites_(watch.sites()), began_(sites_ ? nanoseconds() : 0) {}

CallNote::~CallNote() {
  if (!row_.has_value()) {
    return;
  }
  row_->microseconds = static_cast<double>(spent_ + (sites_ ? nanoseconds() - began_ : 0)) * 1e-3;
  try {
    watch_.add(*row_);
  } catch (const std::exception&) {  // out of memory: a row less
  }
}

void CallNote::pause() {
  spent_ = sites_ ? nanoseconds() - began_ : 0;
}

void CallNote::set(CallRow row) {
  if (!sites_) {
    watch_.add(row);
    return;
  }
  row_ = std::move(row);
  if (auto* const find_site = watch_.find_site.load(std::memory_order_acquire)) {
    row_->site = find_site();
  }
  began_ = nanoseconds();
}

void count_shadowed(Watch& watch, const Override& row) {
  TimeRow counted;
  counted.override = row.name;
  counted.key = row.key;
  counted.calls = counted.shadowed = 1;
  watch.add(counted);
}

}  // namespace aten_ext
