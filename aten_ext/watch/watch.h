// Watching calls: which ones are made (trace), and what upstream would have answered (shadow).
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

// Calls of one override that look alike: same shapes, strides, dtypes and route.
struct CallRow {
  std::string override;
  std::string key;
  Route route = Route::kFused;
  std::string reason;
  std::string signature;
  uint64_t count = 0;
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

class Watch {
 public:
  static constexpr uint32_t kTrace = 1;
  static constexpr uint32_t kShadow = 2;
  // Rows of one session; what does not fit is added up in one row an override and route, with this signature.
  static constexpr size_t kMaxRows = 4096;
  static constexpr const char* kOthers = "other signatures";

  constexpr Watch() = default;

  // What is watched by any session: the word that every call reads.
  std::atomic<uint32_t> bits{0};

  bool traces() const {
    return (bits.load(std::memory_order_relaxed) & kTrace) != 0;
  }
  // Whether this call is to be shadowed. Draws from a generator of its own, never from torch's.
  bool samples() const;
  // Whether the caller is to get upstream's result instead of the fused one.
  bool keeps_upstream() const {
    return keep_upstream_.load(std::memory_order_relaxed);
  }

  // Sessions see the calls of all threads. Of several shadow sessions the youngest sets rate and keep.
  uint64_t start_trace();
  uint64_t start_shadow(double rate, bool keep_upstream);
  void stop(uint64_t session);
  void clear(uint64_t session);  // its rows; it goes on
  // Rows in the order of their first call; empty for a session that is over.
  std::vector<CallRow> calls(uint64_t session) const;
  std::vector<ShadowRow> shadowed(uint64_t session) const;

  // `row.count` and the counts of a shadow row are added to what is there.
  void add(const CallRow& row);
  void add(const ShadowRow& row);

  // Apply ATEN_EXT_TRACE and ATEN_EXT_SHADOW. Returns an error that names the variable, or "".
  std::string apply_environment();

  // What the environment asked for: ATEN_EXT_TRACE ("", "1" or "calls") and the sessions, 0 for none.
  std::string trace_variable() const;
  uint64_t trace_session() const;
  uint64_t shadow_session() const;

 private:
  struct State;
  State& state() const;
  void update(State& state);

  // Made when first needed and never freed: other threads may still call at exit.
  mutable std::atomic<State*> state_{nullptr};
  std::atomic<uint64_t> threshold_{0};  // a call is shadowed when its random number is below
  std::atomic<bool> keep_upstream_{false};
};

}  // namespace aten_ext
