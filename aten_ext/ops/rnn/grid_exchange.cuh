// How blocks all over the GPU that share a hidden state hand it to each other between two steps.
//
// The blocks run at the same time (cooperative launch). Slices go to global memory in words that carry the
// number of their step, and each block reads the words it needs again and again until their numbers are
// right. There is no barrier: a store on its way to the L2 and a load back, instead of stores, a counter that
// waits for them, a flag and loads. The price is twice the bytes, with words of 16 bytes a third more, or
// none where a number has a bit to spare (bounded_words.cuh).
//
// Two buffers are enough. A block that has all of step t has the slice of each other block, which that block
// wrote after it had read all of step t - 1. So nobody still needs step t - 1 when t + 1 overwrites it. This
// takes a unit in each block (has_units_for_all in plan.h): a block without one would not be waited for.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/rnn/arguments.cuh"
#include "ops/rnn/flagged.cuh"

namespace aten_ext::cuda {

// A wait is short, since all blocks are running. One that never ends would be a bug of ours, and becomes an
// error of the launch instead of a hang. It counts polls, not time: a debugger may stop the device for as
// long as it likes. A poll takes about 0.7 us, all of them minutes.
constexpr uint32_t kMaxPolls = 1u << 28;

// Where the words of this block's group are: two buffers, used in turn.
struct GridExchange {
  uint64_t* first;  // of the group, buffer 0
  int64_t buffer;   // from one of the two buffers to the other

  // words: of a group in one of the buffers.
  __device__ __forceinline__ GridExchange(const RnnArguments& a, int64_t words)
      : first(a.words + static_cast<int64_t>(blockIdx.x) / a.blocks * words),
        buffer(static_cast<int64_t>(gridDim.x) / a.blocks * words) {}

  __device__ __forceinline__ uint64_t* of(int64_t step) const {
    return first + (step & 1) * buffer;
  }
};

// What a thread loads at once: two words with a tag in the upper kTagBits of each, or a word of 16 bytes.
template <int kTagBits>
struct PairOfWords {
  using Vector = WordPair;
  static __device__ __forceinline__ Vector load(const uint64_t* from) {
    return load_word_pair(from);
  }
  static __device__ __forceinline__ bool carries(const Vector& pair, uint32_t tag) {
    constexpr int kShift = 64 - kTagBits;
    return static_cast<uint32_t>(pair.first >> kShift) == tag &&
           static_cast<uint32_t>(pair.second >> kShift) == tag;
  }
};

struct WordOfThree {
  using Vector = TaggedTriple;
  static __device__ __forceinline__ Vector load(const uint64_t* from) {
    return load_triple(from);
  }
  static __device__ __forceinline__ bool carries(const Vector& word, uint32_t tag) {
    return word.tag == tag;
  }
};

// A warp's wait for its words of a state: kVectors vectors of Words, kOfRow of them a row, at `from` + kRow *
// row + kNext * vector; of those the ones whose bit in `missing` is set. issue() issues their loads.
// complete() returns as soon as all carry `tag`, and loads again those that do not.
template <typename Words, int kVectors, int kOfRow, int kRow, int kNext>
struct GridPoll {
  using Vector = typename Words::Vector;

  const uint64_t* from;
  uint32_t missing;
  uint32_t tag;

  __device__ __forceinline__ void issue(Vector (&vectors)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if ((missing >> i & 1) != 0) {
        vectors[i] = Words::load(from + i / kOfRow * kRow + i % kOfRow * kNext);
      }
    }
  }

  // All lanes of a warp together, and they leave the loop together. Otherwise the compiler would treat the
  // warp as diverged in every shuffle that follows, which costs some 300 cycles each.
  __device__ __forceinline__ void complete(Vector (&vectors)[kVectors]) {
    for (uint32_t polls = 0;; ++polls) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (Words::carries(vectors[i], tag)) {
          missing &= ~(1u << i);
        }
      }
      if (!__any_sync(0xffffffff, missing != 0)) {
        return;
      }
      if (polls == kMaxPolls) {
        __trap();
      }
      issue(vectors);
    }
  }
};

// Reads rows of words of step `flag` from `from` ([rows, words], contiguous) and hands each to put(row, word,
// data). All threads of a block together; several words of a thread are under way at a time.
template <typename Put>
__device__ __forceinline__ void receive_words(const uint64_t* from, int rows, int words, uint32_t flag,
                                              const Put& put) {
  constexpr int kAtOnce = 4;
  const int threads = static_cast<int>(blockDim.x);
  const int count = rows * words;
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * threads) {
    Flagged word[kAtOnce];
    uint32_t polls = 0;
    bool complete;
    do {
      complete = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        // Beyond the last: the last once more.
        word[i] = load_flagged(from + min(first + i * threads, count - 1));
        complete = complete && word[i].flag == flag;
      }
      if (++polls == kMaxPolls) {
        __trap();
      }
    } while (!complete);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * threads;
      if (at < count) {
        put(at / words, at % words, word[i].data);
      }
    }
  }
}

}  // namespace aten_ext::cuda
