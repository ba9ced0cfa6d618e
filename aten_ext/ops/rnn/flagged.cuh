// Words of data that carry the number of the step they belong to, so that a reader needs no barrier to know
// that it has the right one: both halves are written and read as one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace aten_ext::cuda {

struct Flagged {
  uint32_t data;
  uint32_t flag;
};

// `to` and `from`: in global memory, aligned to 8 bytes.
__device__ __forceinline__ void store_flagged(uint64_t* to, uint32_t data, uint32_t flag) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(static_cast<uint64_t>(flag) << 32 | data)
               : "memory");
}

__device__ __forceinline__ Flagged load_flagged(const uint64_t* from) {
  uint64_t both;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"(from) : "memory");
  return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
}

// Two neighbouring words, each read as one; the pair is not. `from` is aligned to 16 bytes.
struct WordPair {
  uint64_t first;
  uint64_t second;
};

__device__ __forceinline__ void store_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

__device__ __forceinline__ WordPair load_word_pair(const uint64_t* from) {
  WordPair pair;
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(pair.first), "=l"(pair.second)
               : "l"(from)
               : "memory");
  return pair;
}

}  // namespace aten_ext::cuda
