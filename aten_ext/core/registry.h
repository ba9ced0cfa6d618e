// The registry: what every override is called, whether it is on, and what its calls did.
// Standard library only: no torch, no operator names. The rows themselves are generated.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace aten_ext {

// What the calls of one override did. Written by any thread on the hot path, without locks: one
// relaxed increment a call.
class Counts {
 public:
  void add_ran() {
    ran_.fetch_add(1, std::memory_order_relaxed);
  }
  void add_disabled() {
    disabled_.fetch_add(1, std::memory_order_relaxed);
  }
  // Declined late: the driver refused the launch, and upstream ran instead.
  void add_late() {
    late_.fetch_add(1, std::memory_order_relaxed);
  }
  // `reason` must be a string literal: rows are found by its address.
  void add_declined(const char* reason) {
    for (Row& row : rows_) {
      const char* seen = row.reason.load(std::memory_order_acquire);
      if (seen == nullptr) {
        // On failure `seen` becomes what another thread has just put there.
        if (row.reason.compare_exchange_strong(seen, reason, std::memory_order_acq_rel)) {
          seen = reason;
        }
      }
      if (seen == reason) {
        row.count.fetch_add(1, std::memory_order_relaxed);
        return;
      }
    }
    other_reasons_.fetch_add(1, std::memory_order_relaxed);
  }

  uint64_t ran() const {
    return ran_.load(std::memory_order_relaxed);
  }
  uint64_t disabled() const {
    return disabled_.load(std::memory_order_relaxed);
  }
  uint64_t late() const {
    return late_.load(std::memory_order_relaxed);
  }
  // Equal texts at different addresses are added up by the reader.
  std::vector<std::pair<std::string, uint64_t>> declined() const;
  void reset();

 private:
  struct Row {
    std::atomic<const char*> reason{nullptr};
    std::atomic<uint64_t> count{0};
  };
  // An override has a dozen reasons or so; what does not fit is counted as "other reasons".
  static constexpr size_t kRows = 48;

  std::atomic<uint64_t> ran_{0};
  std::atomic<uint64_t> disabled_{0};
  std::atomic<uint64_t> late_{0};
  std::array<Row, kRows> rows_{};
  std::atomic<uint64_t> other_reasons_{0};
};

// One override at one dispatch key, or a graph pass, whose work is done in Python.
struct Override {
  const char* name;     // "cat.out"
  const char* key;      // "CUDA"; "Inductor" for a pass
  const char* summary;  // one line for people
  bool built;           // false for the CUDA rows of a CPU build: known by name, never registered
  bool measured;        // false: no benchmark has shown it to be faster yet, so it starts off
  std::atomic<bool> enabled;
  Counts counts{};
};

// Which environment variable or torch version stopped the load; empty: nothing did.
struct LoadState {
  std::string error;
  bool active = false;  // entries are registered with the dispatcher
};

class Watch;

struct Registry {
  Override* overrides;
  size_t size;
  Watch* watch = nullptr;
  LoadState* state = nullptr;

  Override* begin() const {
    return overrides;
  }
  Override* end() const {
    return overrides + size;
  }

  // How many rows match `pattern`: an override's name, or one with the wildcards * ? [ ].
  size_t count_matching(const std::string& pattern) const;
  // Turn every row that matches on or off. Returns how many did. What is not measured is turned on by
  // its exact name only, never by a wildcard.
  size_t set_enabled(const std::string& pattern, bool enabled) const;
  // The valid names, sorted, each once, separated by commas.
  std::string names() const;
  // Apply ATEN_EXT_ONLY, ATEN_EXT_ENABLE, then ATEN_EXT_DISABLE. Returns an error that names the variable, or
  // "".
  std::string apply_environment() const;
};

// True unless ATEN_EXT=0. Sets `error` when it is neither 0 nor 1.
bool wanted_by_environment(std::string& error);

Registry& registry();  // defined in the generated entries.cpp

}  // namespace aten_ext
