// What the calls of an override did, counted exactly by however many threads. Standard library only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Other systems may keep something else in that register, older compilers do not know it.
#if defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 11)
#define ATEN_EXT_HAS_THREAD_POINTER
#endif

namespace aten_ext {

// How often something happened. One thread, the owner, adds without a locked instruction; all others add to a
// word that they share.
class Tally {
 public:
  [[gnu::always_inline]] void add(bool by_owner) {
    if (by_owner) {
      owners_.store(owners_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    } else {
      others_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  uint64_t value() const {
    // In this order: whoever sees a reset sees the owner's word that it was made from, or a later one.
    const uint64_t others = others_.load(std::memory_order_acquire);
    return others + owners_.load(std::memory_order_relaxed);
  }
  // The owner's word is the owner's alone to write, so the other one takes back what it says.
  void reset() {
    others_.store(-owners_.load(std::memory_order_relaxed), std::memory_order_release);
  }

 private:
  std::atomic<uint64_t> owners_{0};
  std::atomic<uint64_t> others_{0};  // modulo 2^64
};

// What the calls of one override did. Written by any thread on the hot path, without locks.
//
// Even a locked increment is dear there: it waits until all that the call has stored so far is in the cache.
// Nearly always one thread makes an override's calls, so the first that does owns the counts.
class Counts {
 public:
  [[gnu::always_inline]] void add_ran() {
    ran_.add(owned());
  }
  [[gnu::always_inline]] void add_disabled() {
    disabled_.add(owned());
  }
  // Declined late: the driver refused the launch, and upstream ran instead.
  void add_late() {
    late_.add(owned());
  }
  // `reason` must be a string literal: rows are found by its address.
  [[gnu::always_inline]] void add_declined(const char* reason) {
    // Nearly always there is one reason.
    if (rows_[0].reason.load(std::memory_order_acquire) == reason) {
      rows_[0].tally.add(owned());
    } else {
      find_and_add(reason);
    }
  }

  uint64_t ran() const {
    return ran_.value();
  }
  uint64_t disabled() const {
    return disabled_.value();
  }
  uint64_t late() const {
    return late_.value();
  }
  // Equal texts at different addresses are added up by the reader.
  std::vector<std::pair<std::string, uint64_t>> declined() const;
  void reset();

 private:
  [[gnu::noinline]] void find_and_add(const char* reason) {
    for (Row& row : rows_) {
      const char* seen = row.reason.load(std::memory_order_acquire);
      if (seen == nullptr) {
        // On failure `seen` becomes what another thread has just put there.
        if (row.reason.compare_exchange_strong(seen, reason, std::memory_order_acq_rel)) {
          seen = reason;
        }
      }
      if (seen == reason) {
        row.tally.add(owned());
        return;
      }
    }
    other_reasons_.add(owned());
  }

  struct Row {
    std::atomic<const char*> reason{nullptr};
    Tally tally{};
  };
  // An override has a dozen reasons or so; what does not fit is counted as "other reasons".
  static constexpr size_t kRows = 48;

  // Whether the calling thread is the owner. A thread is known by where its thread-local memory is. One that
  // is given this memory after the owner's end owns the counts from then on.
  [[gnu::always_inline]] bool owned() {
#if defined(ATEN_EXT_HAS_THREAD_POINTER)
    const void* const caller = __builtin_thread_pointer();
    const void* owner = owner_.load(std::memory_order_relaxed);
    return owner == caller ||
           (owner == nullptr && owner_.compare_exchange_strong(owner, caller, std::memory_order_relaxed));
#else
    return false;
#endif
  }

  std::atomic<const void*> owner_{nullptr};
  Tally ran_{};
  Tally disabled_{};
  Tally late_{};
  std::array<Row, kRows> rows_{};
  Tally other_reasons_{};
};

}  // namespace aten_ext
