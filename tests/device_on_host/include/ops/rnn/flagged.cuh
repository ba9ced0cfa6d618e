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

struct FourWords {
  uint32_t value[4];
};

inline void store_word(uint32_t* to, uint32_t word) {
  __atomic_store_n(to, word, __ATOMIC_RELAXED);
}
inline FourWords load_four_words(const uint64_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    device_on_host::fail("a load of 128 bits from an address that is no multiple of 16");
  }
  device_on_host::yield();
  FourWords words;
  for (int i = 0; i < 4; ++i) {
    words.value[i] = __atomic_load_n(reinterpret_cast<const uint32_t*>(from) + i, __ATOMIC_RELAXED);
  }
  return words;
}

struct TaggedTriple {
  uint32_t value[3];
  uint32_t tag;
};

// The half with the tag is written last and read first: who sees a tag sees its values, as if both were one.
inline void store_triple(uint64_t* to, const TaggedTriple& word) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) {
    device_on_host::fail("a store of 128 bits to an address that is no multiple of 16");
  }
  __atomic_store_n(to, static_cast<uint64_t>(word.value[1]) << 32 | word.value[0], __ATOMIC_RELAXED);
  __atomic_store_n(to + 1, static_cast<uint64_t>(word.tag) << 32 | word.value[2], __ATOMIC_RELEASE);
}
inline TaggedTriple load_triple(const uint64_t* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    device_on_host::fail("a load of 128 bits from an address that is no multiple of 16");
  }
  device_on_host::yield();
  const uint64_t high = __atomic_load_n(from + 1, __ATOMIC_ACQUIRE);
  const uint64_t low = __atomic_load_n(from, __ATOMIC_RELAXED);
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high)},
          static_cast<uint32_t>(high >> 32)};
}

}  // namespace aten_ext::cuda
