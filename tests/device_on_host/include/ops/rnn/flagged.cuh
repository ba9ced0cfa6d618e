// Twin of aten_ext/ops/rnn/flagged.cuh. A load that waits for others gives them a turn.
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

struct Flagged {
  uint32_t data;
  uint32_t flag;
};

inline void store_flagged(uint64_t* to, uint32_t data, uint32_t flag) {
  __atomic_store_n(to, static_cast<uint64_t>(flag) << 32 | data, __ATOMIC_RELAXED);
}
inline Flagged load_flagged(const uint64_t* from) {
  device_on_host::yield();
  const uint64_t both = __atomic_load_n(from, __ATOMIC_RELAXED);
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}

struct WordPair {
  uint64_t first;
  uint64_t second;
};

inline void store_word(uint64_t* to, uint64_t word) {
  __atomic_store_n(to, word, __ATOMIC_RELAXED);
}
inline WordPair load_word_pair(const uint64_t* from) {
  device_on_host::yield();
  return {__atomic_load_n(from, __ATOMIC_RELAXED), __atomic_load_n(from + 1, __ATOMIC_RELAXED)};
}

}  // namespace aten_ext::cuda
