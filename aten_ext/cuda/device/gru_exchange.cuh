// How blocks all over the GPU that share a GRU layer's hidden state hand it round between steps. (Of a
// cluster: gru_slice.cuh.)
//
// Any number of co-resident blocks: slices go to global memory in words that carry the number of their step,
// and each block reads the whole state into its shared memory, each word again until its number is right. No
// barrier: a store on its way to the L2 and a load back, instead of stores, a counter that waits for them, a
// flag and loads (0.93 us for a barrier over 132 blocks, and then the loads). The price is twice the bytes.
// Two buffers are enough: a block that has all of step t has the slice of each other block, which that block
// wrote after it had read all of step t - 1; so overwriting step t - 1 with t + 1 takes nothing from anyone.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/flagged.cuh"

namespace aten_ext::cuda {

// A cooperative launch has all blocks running, so a wait is short; a wait that never ends would be a bug of
// ours, and is an error of the launch instead of a hang. Polls, not time: a debugger may stop the device for
// as long as it likes. One takes about 0.7 us, all of them minutes.
constexpr uint32_t kMostPolls = 1u << 28;

// Reads rows of words of step `flag` from `from` ([rows, words], contiguous) and hands each to put(row, word,
// data). All threads of a block together; several words of a thread are under way at a time.
template <typename Put>
__device__ __forceinline__ void gru_receive(const uint64_t* from, int rows, int words, uint32_t flag,
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
      if (++polls == kMostPolls) {
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
