// The device side of cat by words (words.cu): what the kernels are told about the runs, and how a thread
// finds the run of a word.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "device/division.cuh"
#include "device/search.cuh"
#include "ops/cat/window.cuh"

namespace aten_ext::cuda {

// An unsigned type of `bytes` bytes: 1, 2, 4, 8 or 16.
template <int bytes>
using WordOf =
    std::conditional_t<bytes == 1, uint8_t,
                       std::conditional_t<bytes == 2, uint16_t,
                                          std::conditional_t<bytes == 4, uint32_t,
                                                             std::conditional_t<bytes == 8, uint2, uint4>>>>;

// Calls f(std::integral_constant<int, word>{}). Host code.
template <typename F>
auto with_word(int word, const F& f) {
  switch (word) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 8:
      return f(std::integral_constant<int, 8>{});
    default:
      return f(std::integral_constant<int, 16>{});
  }
}

// ---- arguments ---------------------------------------------------------------------------------------

// What both kinds begin with. Positions count words.
struct CatWords {
  char* out;                // of the first word that is ours
  uint32_t rows;            // > 0
  uint32_t words;           // of a row that are ours
  uint32_t out_row_stride;  // from one row to the next
  int32_t count;            // of runs
  Divider<uint32_t> line;   // packs of a row
};

// 2 runs, or 8 or 16, found without a table and made in one launch, or a part of a list. Each launch reads
// its arguments for the first time, line by line of constant memory: these are two to five.
template <int most, bool one_launch = true>
struct FewRuns : CatWords {
  static constexpr int kCapacity = most;
  static constexpr bool kOneLaunch = one_launch;

  const char* data[most];     // as if the run began where the row does
  uint32_t begin[most + 1];   // of the run in a row; the end of all; then the largest number
  uint32_t row_stride[most];  // from one row of the input to the next
};

// Inputs whose rows follow each other. `scattered`: a warp looks up several at once.
template <int bytes, bool scattered>
struct ManyRuns : CatWords {
  static constexpr bool kOneLaunch = false;
  static constexpr int kHints = bytes > 4096 ? 256 : 64;
  // A multiple of 16, so that runs of one length begin a launch where a pack of 16 bytes begins.
  static constexpr int kCapacity = (bytes - 64 - (kHints + 1) * static_cast<int>(sizeof(uint16_t))) /
                                   static_cast<int>(sizeof(void*) + sizeof(uint32_t)) / 16 * 16;

  Divider<uint32_t> run;  // words of a run, if all are as long
  int32_t hint_shift;
  bool equal_runs;
  uint16_t hint[kHints + 1];  // [i]: the run at position i << hint_shift
  const char* data[kCapacity];
  uint32_t begin[kCapacity + 1];
};

// ---- where a word comes from -------------------------------------------------------------------------

template <int most, bool one_launch>
__device__ __forceinline__ int find_run(const FewRuns<most, one_launch>& args, uint32_t at) {
  if constexpr (most == 2) {
    return at >= args.begin[1];
  } else {
    // All at once: a search would wait for one load after the other.
    int run = 0;
#pragma unroll
    for (int i = 1; i < most; ++i) {
      run += static_cast<int>(at >= args.begin[i]);
    }
    return run;
  }
}

// An array of the arguments, as constants or, `scattered`, as memory. A warp loads constants from one address
// after the other, and memory from all at once; but where its threads want the same one, a constant is there
// sooner.
template <bool scattered, typename T>
__device__ __forceinline__ const T* reach(const T* array) {
#ifdef __CUDA_ARCH__
  if constexpr (scattered) {
    auto address = reinterpret_cast<uint64_t>(array);
    asm("" : "+l"(address));  // the compiler no longer knows that these are arguments
    array = reinterpret_cast<const T*>(address);
  }
#endif
  return array;
}

template <int bytes, bool scattered>
__device__ __forceinline__ int find_run(const ManyRuns<bytes, scattered>& args, uint32_t at) {
  if (args.equal_runs) {
    return static_cast<int>(args.run(at).quotient);
  }
  const uint32_t part = at >> args.hint_shift;
  const uint16_t* const hint = reach<scattered>(args.hint) + part;
  return find_last_begin(reach<scattered>(args.begin), at, hint[0], hint[1] + 1);
}

// Where a run is, in a row of the result and in memory.
struct RunOfWords {
  uint32_t begin;
  uint32_t end;
  uint32_t row_stride;
  const char* data;
  uint32_t origin;  // what position of a row `data` stands for
};

template <int most, bool one_launch>
__device__ __forceinline__ RunOfWords run_of(const FewRuns<most, one_launch>& args, int run) {
  return {args.begin[run], args.begin[run + 1], args.row_stride[run], args.data[run], 0};
}

template <int bytes, bool scattered>
__device__ __forceinline__ RunOfWords run_of(const ManyRuns<bytes, scattered>& args, int run) {
  const uint32_t begin = reach<scattered>(args.begin)[run];
  const uint32_t end = reach<scattered>(args.begin)[run + 1];
  const char* const data = reach<scattered>(args.data)[run];
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(data));  // which the compiler knows of pointers among constants
#endif
  return {begin, end, end - begin, data, begin};
}

// Word `at` of a row, in its input.
template <int word>
__device__ __forceinline__ const char* source(const RunOfWords& run, uint32_t row, uint32_t at) {
  return run.data + word * static_cast<uint64_t>(row * run.row_stride + (at - run.origin));
}

// ---- loads -------------------------------------------------------------------------------------------

// streamed: first to leave the caches.
template <typename T, bool streamed>
__device__ __forceinline__ T load_word(const char* address) {
  if constexpr (streamed) {
    return __ldcs(reinterpret_cast<const T*>(address));
  } else {
    return *reinterpret_cast<const T*>(address);
  }
}

// Words of a pack, which is stored at once.
template <int word, int count>
union PackOf {
  WordOf<word> words[count];
  WordOf<word * count> pack;
};

}  // namespace aten_ext::cuda
