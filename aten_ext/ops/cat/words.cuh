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

// 2 runs, or 8 or 16, found without a table and made in one launch. Each launch reads its arguments for the
// first time, line by line of constant memory: these are two to five.
template <int most>
struct FewRuns : CatWords {
  static constexpr int kCapacity = most;
  static constexpr bool kOneLaunch = true;

  const char* data[most];     // as if the run began where the row does
  uint32_t begin[most + 1];   // of the run in a row; the end of all; then the largest number
  uint32_t row_stride[most];  // from one row of the input to the next
};

// Inputs whose rows follow each other.
template <int bytes>
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

template <int most>
__device__ __forceinline__ int find_run(const FewRuns<most>& args, uint32_t at) {
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

template <int bytes>
__device__ __forceinline__ int find_run(const ManyRuns<bytes>& args, uint32_t at) {
  if (args.equal_runs) {
    return static_cast<int>(args.run(at).quotient);
  }
  const uint32_t part = at >> args.hint_shift;
  return find_last_begin(args.begin, at, args.hint[part], args.hint[part + 1] + 1);
}

template <int most>
__device__ __forceinline__ uint32_t row_stride(const FewRuns<most>& args, int run) {
  return args.row_stride[run];
}

template <int bytes>
__device__ __forceinline__ uint32_t row_stride(const ManyRuns<bytes>& args, int run) {
  return args.begin[run + 1] - args.begin[run];
}

// What position of a row `data` stands for.
template <int most>
__device__ __forceinline__ uint32_t origin(const FewRuns<most>&, int) {
  return 0;
}

template <int bytes>
__device__ __forceinline__ uint32_t origin(const ManyRuns<bytes>& args, int run) {
  return args.begin[run];
}

// Word `at` of a row, in its input.
template <int word, typename Args>
__device__ __forceinline__ const char* source(const Args& args, int run, uint32_t row, uint32_t at) {
  return args.data[run] +
         word * static_cast<uint64_t>(row * row_stride(args, run) + (at - origin(args, run)));
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
