// Which threads take denormal numbers for zero: see denormals.h.
#include "core/denormals.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aten_ext {
namespace {

#if defined(__x86_64__)
constexpr unsigned kFlush = _MM_FLUSH_ZERO_MASK | _MM_DENORMALS_ZERO_MASK;

unsigned mode_of_thread() {
  return _mm_getcsr() & kFlush;
}
void set_mode(unsigned mode) {
  _mm_setcsr((_mm_getcsr() & ~kFlush) | mode);
}
#else
unsigned mode_of_thread() {
  return 0;
}
void set_mode(unsigned /*mode*/) {}
#endif

// What a thread knows of its pool.
struct Pool {
  int threads = 0;  // when it asked
  unsigned mode = 0;
  bool is_mixed = false;
  std::atomic<bool> stale{false};
};

Pool& pool_of_thread() {
  thread_local Pool pool;
  return pool;
}

}  // namespace

bool flushes_denormals() {
  return mode_of_thread() != 0;
}

bool pool_flushes_otherwise() {
  const int threads = at::get_num_threads();
  if (threads < 2 || at::in_parallel_region()) {
    return false;  // the caller is alone
  }
  Pool& pool = pool_of_thread();
  const unsigned mode = mode_of_thread();
  if (pool.threads != threads || pool.mode != mode || pool.stale.load(std::memory_order_relaxed)) {
    std::atomic<bool> is_mixed{false};
    at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
      if (mode_of_thread() != mode) {
        is_mixed.store(true, std::memory_order_relaxed);
      }
    });
    pool.threads = threads;
    pool.mode = mode;
    pool.is_mixed = is_mixed.load(std::memory_order_relaxed);
    pool.stale.store(false, std::memory_order_relaxed);
  }
  return pool.is_mixed;
}

DenormalMode::DenormalMode() : bits_(mode_of_thread()), stale_(&pool_of_thread().stale) {}

DenormalMode::Scope::Scope(const DenormalMode& mode)
    : before_(mode_of_thread()), changed_(before_ != mode.bits_) {
  if (changed_) {
    set_mode(mode.bits_);
    mode.stale_->store(true, std::memory_order_relaxed);
  }
}

DenormalMode::Scope::~Scope() {
  if (changed_) {
    set_mode(before_);
  }
}

}  // namespace aten_ext
