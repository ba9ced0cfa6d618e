// Launches of the kernels of cat by words: the lists that arguments hold, and what they say of each run.
#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "ops/cat/kernels.h"
#include "ops/cat/words_kernels.cuh"

namespace aten_ext::cuda {

// ---- policy ------------------------------------------------------------------------------------------

inline constexpr int kMinWordsThreads = 128;
// With fewer large blocks than this a multiprocessor, blocks are small, so that there are more of them.
inline constexpr int64_t kWordsBlocksPerSM = 2;
// Of more than 16 inputs whose runs are shorter on average than so many words, of 4 bytes at least, a warp
// looks up several: if they differ in length, or if they do not.
inline constexpr int64_t kScatteredRun = 16;
inline constexpr int64_t kScatteredEqualRun = 8;

// ---- launch ------------------------------------------------------------------------------------------

// Ways to make a result: how many packs they take, and by which kernel.
template <int word_, int count_, bool one_row = true, bool window = false>
struct Line {
  static constexpr int word = word_;
  static constexpr int count = count_;
  static constexpr bool kWholeRows = true;
  // Lines of single smaller words are short.
  static constexpr bool kMayStream = word == 16 || count > 1;
  template <typename Args>
  static int64_t threads(const Args& args) {
    return ceil_div(static_cast<int64_t>(args.rows) * args.words, int64_t{count});
  }
  template <bool streamed, typename Args>
  static constexpr auto kernel = cat_line_kernel<word, count, one_row, window, streamed, Args>;
};

template <int word_, int count_, int rows, bool window = false>
struct Columns {
  static constexpr int word = word_;
  static constexpr int count = count_;
  static constexpr bool kWholeRows = false;
  static constexpr bool kMayStream = true;
  template <typename Args>
  static int64_t threads(const Args& args) {
    return ceil_div(static_cast<int64_t>(args.rows), int64_t{rows}) * (args.words / count);
  }
  template <bool streamed, typename Args>
  static constexpr auto kernel = cat_column_kernel<word, count, rows, window, streamed, Args>;
};

using TwoRuns = FewRuns<2>;
using EightRuns = FewRuns<8>;
using SixteenRuns = FewRuns<16>;
using SixteenOfMany = FewRuns<16, false>;
template <bool scattered = false>
using SmallList = ManyRuns<kSmallArgumentBytes, scattered>;
template <bool scattered = false>
using LargeList = ManyRuns<kLargeArgumentBytes, scattered>;

inline bool are_few(const CatRunsParams& p) {
  return p.count <= SixteenRuns::kCapacity;
}

// Runs of a launch.
inline int capacity(const CatRunsParams& p) {
  if (are_few(p)) {
    return p.count <= TwoRuns::kCapacity     ? TwoRuns::kCapacity
           : p.count <= EightRuns::kCapacity ? EightRuns::kCapacity
                                             : SixteenRuns::kCapacity;
  }
  return p.count > SmallList<>::kCapacity && p.gpu.argument_bytes >= kLargeArgumentBytes
             ? LargeList<>::kCapacity
             : SmallList<>::kCapacity;
}

// In bytes.
inline int64_t average_run(const CatRunsParams& p) {
  return p.row_size * p.element_size / p.count;
}

template <int most, bool one_launch>
void describe(FewRuns<most, one_launch>& args, const CatRun* runs, int64_t element_size, int word) {
  std::fill(args.begin + args.count + 1, std::end(args.begin), std::numeric_limits<uint32_t>::max());
  for (int i = 0; i < args.count; ++i) {
    args.row_stride[i] = static_cast<uint32_t>(runs[i].row_stride * element_size / word);
    args.data[i] = static_cast<const char*>(runs[i].data) - int64_t{args.begin[i]} * word;
  }
}

template <int bytes, bool scattered>
void describe(ManyRuns<bytes, scattered>& args, const CatRun* runs, int64_t /*element_size*/, int /*word*/) {
  using Args = ManyRuns<bytes, scattered>;
  args.equal_runs = true;
  for (int i = 0; i < args.count; ++i) {
    args.data[i] = static_cast<const char*>(runs[i].data);
    args.equal_runs = args.equal_runs && runs[i].size == runs[0].size;
  }
  args.run = Divider<uint32_t>(args.begin[1]);
  args.hint_shift = 0;
  while ((args.words - 1) >> args.hint_shift >= static_cast<uint32_t>(Args::kHints)) {
    ++args.hint_shift;
  }
  int run = 0;
  for (int i = 0; i <= Args::kHints; ++i) {
    const uint64_t at = static_cast<uint64_t>(i) << args.hint_shift;
    while (run + 1 < args.count && args.begin[run + 1] <= at) {
      ++run;
    }
    args.hint[i] = static_cast<uint16_t>(run);
  }
}

inline int64_t bytes_of(const CatRunsParams& p) {
  return p.rows * p.row_size * p.element_size;
}

// Whether a warp looks up several runs.
inline bool are_scattered(const CatRunsParams& p, int word) {
  const int64_t run = average_run(p);
  const auto differs = [&p](const CatRun& one) { return one.size != p.runs[0].size; };
  return run < kScatteredEqualRun * word ||
         (run < kScatteredRun * word && std::any_of(p.runs, p.runs + p.count, differs));
}

// Whether what is read is the first to leave the L2. Then the result is still there when it is read, where it
// fits. Where the inputs fit beside it, they may be there already.
inline bool is_streamed(const CatRunsParams& p) {
  const int64_t room = p.gpu.l2_bytes / 3 * 2;
  return bytes_of(p) <= room && 2 * bytes_of(p) > room;
}

template <typename Way, typename Args>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  static_assert(sizeof(Args) <= kLargeArgumentBytes &&
                sizeof(Args) - sizeof(Args::begin) <= kIndexedArgumentBytes &&
                Args::kCapacity <= std::numeric_limits<uint16_t>::max());
  const auto words = [&p](int64_t elements) {
    return static_cast<uint32_t>(elements * p.element_size / Way::word);
  };
  Args args;
  args.rows = static_cast<uint32_t>(p.rows);
  args.out_row_stride = words(p.row_size);
  const bool streamed = is_streamed(p);
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    const CatRun* const runs = p.runs + from;
    args.count = static_cast<int32_t>(std::min<int64_t>(p.count - from, Args::kCapacity));
    args.out = static_cast<char*>(p.out) + runs[0].begin * p.element_size;
    for (int i = 0; i < args.count; ++i) {
      args.begin[i] = words(runs[i].begin - runs[0].begin);
    }
    const CatRun& last = runs[args.count - 1];
    args.words = args.begin[args.count] = words(last.begin + last.size - runs[0].begin);
    args.line = Divider<uint32_t>(Way::kWholeRows ? args.words : args.words / Way::count);
    describe(args, runs, p.element_size, Way::word);
    const int64_t needed = Way::threads(args);
    const int threads = needed < kWordsBlocksPerSM * p.gpu.multiprocessors * kCatWordsThreads
                            ? kMinWordsThreads
                            : kCatWordsThreads;
    auto* kernel = Way::template kernel<false, Args>;
    if constexpr (Way::kMayStream) {
      kernel = streamed ? Way::template kernel<true, Args> : kernel;
    }
    if (const cudaError_t error = sequence.launch(kernel, ceil_div(needed, threads), threads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <typename Way, template <bool> typename List>
cudaError_t launch_many(const CatRunsParams& p, LaunchSequence& sequence) {
  if constexpr (Way::word >= 4) {
    if (are_scattered(p, Way::word)) {
      return launch_list<Way, List<true>>(p, sequence);
    }
  }
  return launch_list<Way, List<false>>(p, sequence);
}

template <typename Way>
cudaError_t launch(const CatRunsParams& p, LaunchSequence& sequence) {
  switch (capacity(p)) {
    case TwoRuns::kCapacity:
      return launch_list<Way, TwoRuns>(p, sequence);
    case EightRuns::kCapacity:
      return launch_list<Way, EightRuns>(p, sequence);
    case SixteenRuns::kCapacity:
      return launch_list<Way, SixteenRuns>(p, sequence);
    case SmallList<>::kCapacity:
      return launch_many<Way, SmallList>(p, sequence);
    default:
      return launch_many<Way, LargeList>(p, sequence);
  }
}

}  // namespace aten_ext::cuda
