#include "watch/watch.h"

#include <pthread.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <list>
#include <mutex>
#include <system_error>
#include <unordered_map>

namespace aten_ext {
namespace {

char route_letter(const CallRow& row) {
  return static_cast<char>('0' + static_cast<int>(row.route));
}
char route_letter(const ShadowRow& /*row*/) {
  return '0';
}

// What one session keeps of a kind of row: rows of times have no signature and few keys.
void merge(TimeRow& into, const TimeRow& row) {
  into.calls += row.calls;
  into.timed += row.timed;
  into.inside += row.inside;
  into.captured += row.captured;
  into.shadowed += row.shadowed;
  into.ours += row.ours;
  into.comparable += row.comparable;
  into.comparable_ours += row.comparable_ours;
  into.sampled += row.sampled;
  into.failed += row.failed;
  into.error = into.error.empty() ? row.error : into.error;
  into.sum_ours += row.sum_ours;
  into.sum_upstream += row.sum_upstream;
  into.sum_ours_ours += row.sum_ours_ours;
  into.sum_upstream_upstream += row.sum_upstream_upstream;
  into.sum_ours_upstream += row.sum_ours_upstream;
}

// Rows by what they have in common, at most so many; see Watch::kMaxRows.
template <class Row>
class Rows {
 public:
  Row& find(const std::string& text, const Row& like) {
    if (const auto found = index_.find(text); found != index_.end()) {
      return *found->second;
    }
    Row fresh;
    fresh.override = like.override;
    fresh.key = like.key;
    fresh.signature = like.signature;
    if (index_.size() >= Watch::kMaxRows && like.signature != Watch::kOthers) {
      fresh.signature = Watch::kOthers;
      return find(like.override + '\n' + like.key + '\n' + route_letter(like), fresh);
    }
    Row& row = rows_.emplace_back(fresh);
    index_.emplace(text, &row);
    return row;
  }
  std::vector<Row> copy() const {
    return {rows_.begin(), rows_.end()};
  }

 private:
  std::list<Row> rows_;  // a list: its elements stay where they are
  std::unordered_map<std::string, Row*> index_;
};

struct Session {
  uint64_t id;
  uint32_t kind;
  uint64_t threshold = 0;
  bool keep_upstream = false;
  Rows<CallRow> calls{};
  Rows<ShadowRow> shadowed{};
  std::list<TimeRow> times{};
};

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

uint64_t next_random() {
  // Addresses and the clock tell threads and processes apart.
  thread_local uint64_t state =
      mix(reinterpret_cast<uintptr_t>(&state) ^
          static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  state += 0x9E3779B97F4A7C15ull;
  return mix(state);
}

bool below(uint64_t threshold) {
  return threshold == std::numeric_limits<uint64_t>::max() || next_random() < threshold;
}

uint64_t threshold_of(double rate) {
  // 2^64 - 1 stands for "every call"; below it the fraction is exact to 2^-53.
  return rate >= 1 ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(std::ldexp(rate, 64));
}

}  // namespace

void Differences::merge(const Differences& other) {
  if (worst.empty() || other.max_ulp > max_ulp) {
    worst = other.worst.empty() ? worst : other.worst;
  }
  if (layout.empty()) {
    layout = other.layout;
  }
  elements += other.elements;
  different += other.different;
  nan += other.nan;
  layouts += other.layouts;
  max_absolute = std::max(max_absolute, other.max_absolute);
  max_relative = std::max(max_relative, other.max_relative);
  max_ulp = std::max(max_ulp, other.max_ulp);
}

struct Watch::State {
  std::mutex mutex;
  std::list<Session> sessions;
  uint64_t next_id = 1;
  std::string trace_variable;
  uint64_t trace_session = 0;
  uint64_t shadow_session = 0;
  uint64_t times_session = 0;

  Session* find(uint64_t id) {
    const auto found = std::find_if(sessions.begin(), sessions.end(), [id](auto& s) { return s.id == id; });
    return found == sessions.end() ? nullptr : &*found;
  }
};

namespace {

// fork() copies the process while another thread may hold the mutex: it is held across the fork.
std::mutex* across_forks = nullptr;

}  // namespace

Watch::State& Watch::state() const {
  if (State* made = state_.load(std::memory_order_acquire)) {
    return *made;
  }
  auto* fresh = new State;
  State* expected = nullptr;
  if (!state_.compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) {
    delete fresh;
    return *expected;
  }
  across_forks = &fresh->mutex;
  pthread_atfork([] { across_forks->lock(); }, [] { across_forks->unlock(); },
                 [] { across_forks->unlock(); });
  return *fresh;
}

// Under the mutex: the atomics follow the sessions.
void Watch::update(State& state) {
  uint32_t wanted = 0;
  for (const Session& session : state.sessions) {
    wanted |= session.kind;
    if (session.kind == kTimes) {
      times_threshold_.store(session.threshold, std::memory_order_relaxed);
    }
    if (session.kind == kShadow) {
      threshold_.store(session.threshold, std::memory_order_relaxed);
      keep_upstream_.store(session.keep_upstream, std::memory_order_relaxed);
    }
  }
  bits.store(wanted, std::memory_order_relaxed);
}

bool Watch::samples() const {
  if ((bits.load(std::memory_order_relaxed) & kShadow) == 0) {
    return false;
  }
  return below(threshold_.load(std::memory_order_relaxed));
}

bool Watch::samples_upstream() const {
  return below(times_threshold_.load(std::memory_order_relaxed));
}

bool Watch::upstream_first() const {
  return (next_random() >> 63) != 0;
}

uint64_t Watch::start_trace(bool sites) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sessions.push_back({s.next_id, sites ? kTrace | kSites : kTrace});
  update(s);
  return s.next_id++;
}

uint64_t Watch::start_shadow(double rate, bool keep_upstream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sessions.push_back({s.next_id, kShadow, threshold_of(rate), keep_upstream});
  update(s);
  return s.next_id++;
}

uint64_t Watch::start_times(double rate) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sessions.push_back({s.next_id, kTimes, threshold_of(rate)});
  update(s);
  return s.next_id++;
}

void Watch::stop(uint64_t session) {
  settle();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.sessions.remove_if([session](const Session& candidate) { return candidate.id == session; });
  update(s);
}

void Watch::clear(uint64_t session) {
  settle();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (Session* found = s.find(session)) {
    found->calls = {};
    found->shadowed = {};
    found->times.clear();
  }
}

std::vector<CallRow> Watch::calls(uint64_t session) const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const Session* found = s.find(session);
  return found == nullptr ? std::vector<CallRow>{} : found->calls.copy();
}

std::vector<ShadowRow> Watch::shadowed(uint64_t session) const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const Session* found = s.find(session);
  return found == nullptr ? std::vector<ShadowRow>{} : found->shadowed.copy();
}

std::vector<TimeRow> Watch::timed(uint64_t session) const {
  settle();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const Session* found = s.find(session);
  return found == nullptr ? std::vector<TimeRow>{}
                          : std::vector<TimeRow>(found->times.begin(), found->times.end());
}

// Outside the mutex: what it calls adds rows.
void Watch::settle() const {
  if (auto* const settle = settle_times.load(std::memory_order_acquire)) {
    settle();
  }
}

void Watch::add(const TimeRow& row) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (Session& session : s.sessions) {
    if (session.kind == kTimes) {
      const auto found = std::find_if(session.times.begin(), session.times.end(), [&](const TimeRow& each) {
        return each.override == row.override && each.key == row.key;
      });
      found == session.times.end() ? session.times.push_back(row) : merge(*found, row);
    }
  }
}

void Watch::add(const CallRow& row) {
  const std::string text =
      row.override + '\n' + row.key + '\n' + route_letter(row) + row.reason + '\n' + row.signature;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (Session& session : s.sessions) {
    if ((session.kind & kTrace) != 0) {
      const bool sites = (session.kind & kSites) != 0;
      CallRow& found = session.calls.find(sites ? text + '\n' + row.site : text, row);
      found.site = sites && found.signature != kOthers ? row.site : "";
      found.microseconds += sites ? row.microseconds : 0;
      found.route = row.route;
      found.reason = found.signature == kOthers ? "" : row.reason;
      found.count += row.count;
    }
  }
}

void Watch::add(const ShadowRow& row) {
  const std::string text = row.override + '\n' + row.key + '\n' + row.signature;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (Session& session : s.sessions) {
    if (session.kind == kShadow) {
      ShadowRow& found = session.shadowed.find(text, row);
      found.compared += row.compared;
      found.differing += row.differing;
      found.captured += row.captured;
      found.failed += row.failed;
      found.error = found.error.empty() ? row.error : found.error;
      found.differences.merge(row.differences);
    }
  }
}

std::string Watch::apply_environment() {
  const auto variable = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  const std::string trace = variable("ATEN_EXT_TRACE");
  if (!trace.empty() && trace != "0" && trace != "1" && trace != "calls") {
    return "[aten_ext] ATEN_EXT_TRACE: expected 0, 1 or calls, got '" + trace + "'";
  }
  const std::string shadow = variable("ATEN_EXT_SHADOW");
  double rate = 0;
  if (!shadow.empty()) {
    // Not strtod, which takes a comma for the point in some locales.
    const char* const last = shadow.data() + shadow.size();
    const auto [end, problem] = std::from_chars(shadow.data(), last, rate);
    if (problem != std::errc() || end != last || !(rate >= 0 && rate <= 1)) {
      return "[aten_ext] ATEN_EXT_SHADOW: expected the fraction of calls to compare, 0 to 1, got '" + shadow +
             "'";
    }
  }
  const std::string report = variable("ATEN_EXT_REPORT");
  uint64_t every = 0;
  if (!report.empty() && report != "0" && report != "time") {
    const char* const last = report.data() + report.size();
    const auto [end, problem] = std::from_chars(report.data(), last, every);
    if (problem != std::errc() || end != last || every == 0) {
      return "[aten_ext] ATEN_EXT_REPORT: expected time, or N to time upstream beside one call in N, got '" +
             report + "'";
    }
  }
  const bool wants_report = !report.empty() && report != "0";
  const uint64_t times_session =
      wants_report ? start_times(every == 0 ? 0 : 1 / static_cast<double>(every)) : 0;
  const uint64_t trace_session = trace == "calls" ? start_trace() : 0;
  const uint64_t shadow_session = rate > 0 ? start_shadow(rate, false) : 0;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.trace_variable = trace == "0" ? "" : trace;
  s.trace_session = trace_session;
  s.shadow_session = shadow_session;
  s.times_session = times_session;
  return "";
}

std::string Watch::trace_variable() const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.trace_variable;
}

uint64_t Watch::trace_session() const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.trace_session;
}

uint64_t Watch::shadow_session() const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.shadow_session;
}

uint64_t Watch::times_session() const {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.times_session;
}

}  // namespace aten_ext
