// Watching calls: which ones are made (trace), what upstream would have answered (shadow), and how long both
// take (times).
// Standard library only, like the registry: `_kernels` writes, `_C` reads. While nobody watches, a call
// reads one word, `Watch::bits`, and nothing else here.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aten_ext {

// kLate: the driver refused the fused kernel's launch, and upstream ran.
enum class Route : uint8_t { kFused, kDeclined, kDisabled, kLate };

// Calls of one override that look alike: same shapes, strides, dtypes and route, and from one line of the
// program where a session asks for that.
struct CallRow {
  std::string override;
  std::string key;
  Route route = Route::kFused;
  std::string reason;
  std::string signature;
  uint64_t count = 0;
  std::string site{};       // "file:line"; empty for a session that does not ask for it
  double microseconds = 0;  // from the entry to its return, on the CPU's clock; 0 likewise
};

// How far apart the results of the fused kernel and of upstream are. The largest of many calls when merged.
struct Differences {
  uint64_t elements = 0;    // that were compared
  uint64_t different = 0;   // elements whose bits differ, NaN taken for NaN whatever its bits
  uint64_t nan = 0;         // elements that are NaN on one side alone; they count in no maximum
  uint64_t layouts = 0;     // results whose dtype, shape, strides or device differ
  double max_absolute = 0;  // |ours - upstream|
  double max_relative = 0;  // |ours - upstream| / |upstream|
  double max_ulp = 0;       // representable numbers in between; for integers the difference
  std::string worst;        // the result with the largest max_ulp: "exp_avgs[2]"
  std::string layout;       // the first layout that differs, in words

  bool exact() const {
    return different == 0 && layouts == 0;
  }
  void merge(const Differences& other);
};

// Shadowed calls of one override that look alike.
struct ShadowRow {
  std::string override;
  std::string key;
  std::string signature;
  uint64_t compared = 0;
  uint64_t differing = 0;  // of those compared
  uint64_t captured = 0;   // not compared: a CUDA graph was being captured
  uint64_t failed = 0;     // not compared: upstream or the comparison raised an error
  std::string error;       // the first of those
  Differences differences{};
};

// Times of one override's fused calls, in microseconds: on the CPU's clock at a CPU key, between two events
// of the stream at CUDA.
struct TimeRow {
  std::string override;
  std::string key;
  uint64_t calls = 0;     // fused calls, whatever became of them here
  uint64_t timed = 0;     // of those; the others are the next three
  uint64_t inside = 0;    // not timed: inside another fused call, whose time has theirs
  uint64_t captured = 0;  // not timed: a CUDA graph was being captured
  uint64_t shadowed = 0;  // not timed: shadow mode compared it
  double ours = 0;        // of the timed ones
  // Timed calls beside which upstream could be called, and the time of ours in them.
  uint64_t comparable = 0;
  double comparable_ours = 0;
  // Those beside which upstream was called. Sums over them are what a ratio estimate needs.
  uint64_t sampled = 0;
  uint64_t failed = 0;  // upstream, or the copies for it, raised an error
  std::string error{};  // the first of those
  double sum_ours = 0;
  double sum_upstream = 0;
  double sum_ours_ours = 0;
  double sum_upstream_upstream = 0;
  double sum_ours_upstream = 0;
};

class Watch {
 public:
  static constexpr uint32_t kTrace = 1;
  static constexpr uint32_t kShadow = 2;
  static constexpr uint32_t kTimes = 4;
  static constexpr uint32_t kSites = 8;  // traces that ask for sites and times
  // Rows of one session; what does not fit is added up in one row an override and route, with this signature.
  static constexpr size_t kMaxRows = 4096;
  static constexpr const char* kOthers = "other signatures";

  constexpr Watch() = default;

  // What is watched by any session: the word that every call reads.
  std::atomic<uint32_t> bits{0};

  bool traces() const {
    return (bits.load(std::memory_order_relaxed) & kTrace) != 0;
  }
  bool sites() const {
    return (bits.load(std::memory_order_relaxed) & kSites) != 0;
  }
  bool times() const {
    return (bits.load(std::memory_order_relaxed) & kTimes) != 0;
  }
  // Whether this call is to be shadowed. Draws from a generator of its own, never from torch's.
  bool samples() const;
  // Whether upstream is to be timed beside this call, and whether it goes first then. Likewise.
  bool samples_upstream() const;
  bool upstream_first() const;
  // Whether the caller is to get upstream's result instead of the fused one.
  bool keeps_upstream() const {
    return keep_upstream_.load(std::memory_order_relaxed);
  }

  // Sessions see the calls of all threads. Of several shadow sessions the youngest sets rate and keep.
  uint64_t start_trace(bool sites = false);
  uint64_t start_shadow(double rate, bool keep_upstream);
  uint64_t start_times(double rate);  // `rate`: of the fused calls, beside which upstream is timed
  void stop(uint64_t session);
  void clear(uint64_t session);  // its rows; it goes on
  // Rows in the order of their first call; empty for a session that is over.
  std::vector<CallRow> calls(uint64_t session) const;
  std::vector<ShadowRow> shadowed(uint64_t session) const;
  // Waits for the GPU, if calls are still running there whose times are wanted.
  std::vector<TimeRow> timed(uint64_t session) const;

  // The line of the program that makes the call, from whoever knows the program's language; null: nobody.
  std::atomic<std::string (*)()> find_site{nullptr};
  // Adds the times that the GPU has not told yet; set by what keeps them.
  std::atomic<void (*)()> settle_times{nullptr};

  // `row.count` and the counts of a shadow row are added to what is there.
  void add(const CallRow& row);
  void add(const ShadowRow& row);
  void add(const TimeRow& row);

  // Apply ATEN_EXT_TRACE, ATEN_EXT_SHADOW and ATEN_EXT_REPORT. Returns an error that names the variable, or
  // "".
  std::string apply_environment();

  // What the environment asked for: ATEN_EXT_TRACE ("", "1" or "calls") and the sessions, 0 for none.
  std::string trace_variable() const;
  uint64_t trace_session() const;
  uint64_t shadow_session() const;
  uint64_t times_session() const;

 private:
  struct State;
  State& state() const;
  void update(State& state);
  void settle() const;

  // Made when first needed and never freed: other threads may still call at exit.
  mutable std::atomic<State*> state_{nullptr};
  std::atomic<uint64_t> threshold_{0};  // a call is shadowed when its random number is below
  std::atomic<bool> keep_upstream_{false};
  std::atomic<uint64_t> times_threshold_{0};
};

}  // namespace aten_ext
