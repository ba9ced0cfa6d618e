// Words of data that carry the number of the step they belong to, so that a reader needs no barrier to know
// that it has the right one: data and number are written and read as one.
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

// The same of 32 bits: four neighbouring words, each read as one. `from` is aligned to 16 bytes.
struct FourWords {
  uint32_t value[4];
};

__device__ __forceinline__ void store_word(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

__device__ __forceinline__ FourWords load_four_words(const uint64_t* from) {
  FourWords words;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.value[0]), "=r"(words.value[1]), "=r"(words.value[2]), "=r"(words.value[3])
               : "l"(from)
               : "memory");
  return words;
}

// Three values and a tag in 16 bytes, written and read as one: an access of 128 bits in one register is
// atomic, one of a vector of several is not. `to` and `from` are aligned to 16 bytes.
struct TaggedTriple {
  uint32_t value[3];
  uint32_t tag;
};

__device__ __forceinline__ void store_triple(uint64_t* to, const TaggedTriple& word) {
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "mov.b128 word, {%1, %2};\n"
      "st.relaxed.gpu.global.b128 [%0], word;\n"
      "}" ::"l"(to),
      "l"(static_cast<uint64_t>(word.value[1]) << 32 | word.value[0]),
      "l"(static_cast<uint64_t>(word.tag) << 32 | word.value[2])
      : "memory");
}

__device__ __forceinline__ TaggedTriple load_triple(const uint64_t* from) {
  uint64_t low;
  uint64_t high;
  asm volatile(
      "{\n"
      ".reg .b128 word;\n"
      "ld.relaxed.gpu.global.b128 word, [%2];\n"
      "mov.b128 {%0, %1}, word;\n"
      "}"
      : "=l"(low), "=l"(high)
      : "l"(from)
      : "memory");
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), static_cast<uint32_t>(high)},
          static_cast<uint32_t>(high >> 32)};
}

}  // namespace aten_ext::cuda
