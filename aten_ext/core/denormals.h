// Which threads take denormal numbers for zero.
//
// torch.set_flush_denormal is a mode of the thread that calls it. A thread of a pool has the mode of the one
// that started it, at that time, and keeps it. So a call may be shared by threads of both modes, and which of
// its denormals become zero depends on how upstream deals them out: only upstream knows that.
#pragma once

#include <ATen/Parallel.h>

#include <atomic>
#include <cstdint>

namespace aten_ext {

// Whether the calling thread takes denormal numbers for zero, or makes zero of them.
bool flushes_denormals();

// Whether a thread of the caller's pool flushes where the caller does not, or keeps what it flushes. Starts
// the pool and asks each thread, the first time, and again when the caller's mode or the number of threads
// has changed or a thread was seen to be another.
bool pool_flushes_otherwise();

// The mode of the thread that made it, for the threads that share its work.
class DenormalMode {
 public:
  DenormalMode();

  // Until the end of a block the thread has this mode.
  class Scope {
   public:
    explicit Scope(const DenormalMode& mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    unsigned before_;
    bool changed_;
  };

 private:
  unsigned bits_;
  std::atomic<bool>* stale_;  // the caller's: what it knows of its pool is no longer true
};

// at::parallel_for, in the mode of the caller. Where pool_flushes_otherwise() said no, a pool that shrank and
// grew again since then may still hold another thread.
template <class F>
void parallel_for_as_caller(int64_t begin, int64_t end, int64_t grain, const F& f) {
  const DenormalMode mode;
  at::parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    const DenormalMode::Scope scope(mode);
    f(first, last);
  });
}

}  // namespace aten_ext
