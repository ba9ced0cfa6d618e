// The kernels of cat by words: a line of words or packs, and columns of rows. When which: words.cu.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/sync.cuh"
#include "ops/cat/words.cuh"

namespace aten_ext::cuda {

constexpr int kCatWordsThreads = 256;  // of a block, at most

// Launches for one list overlap (core/launch_sequence.h).
template <typename Args, typename F>
__device__ __forceinline__ void overlapping(const Args&, const F& f) {
  if constexpr (Args::kOneLaunch) {
    f();
  } else {
    launch_dependents();
    f();
    wait_for_previous_launches();
  }
}

// Whether the aligned packs that load_window reads for two packs of a column, its first and its last, are in
// their input.
template <int word, int count, typename Args>
__device__ __forceinline__ bool windows_fit(const Args& args, const RunOfWords& run, const char* first,
                                            const char* last) {
  constexpr int kBytes = word * count;
  const char* const begin = source<word>(run, 0, run.begin);
  const char* const end =
      begin + word * (static_cast<uint64_t>(args.rows - 1) * run.row_stride + (run.end - run.begin));
  return first - phase_of<kBytes>(first) >= begin && last - phase_of<kBytes>(last) + 2 * kBytes <= end;
}

// Rows that follow each other are one line of packs.
template <int word, int count, bool one_row, bool window, bool streamed, typename Args>
__device__ __forceinline__ void make_line(const Args& args) {
  using Word = WordOf<word>;
  const auto locate = [&args](uint32_t index) {
    return one_row ? Quotient<uint32_t>{0, index} : args.line(index);
  };
  const uint32_t words = one_row ? args.words : args.rows * args.words;
  uint32_t index = (blockIdx.x * blockDim.x + threadIdx.x) * count;
  if constexpr (count == 1) {
    // Those beyond the end make the last word again: no read of the arguments waits for this one.
    index = min(index, words - 1);
  } else if (index >= words) {
    return;
  }
  const auto [row, at] = locate(index);
  const RunOfWords run = run_of(args, find_run(args, at));
  const char* const from = source<word>(run, row, at);
  PackOf<word, count> x;
  const bool in_one = count == 1 || at + count <= run.end;
  if constexpr (window) {
    if (in_one && windows_fit<word, count>(args, run, from, from)) {
      using Pack = WordOf<word * count>;
      const uint32_t phase = phase_of<sizeof(Pack)>(from);
      const Pack low = load_word<Pack, streamed>(from - phase);
      const Pack high = load_word<Pack, streamed>(from - phase + sizeof(Pack));
      *reinterpret_cast<Pack*>(args.out + word * static_cast<uint64_t>(index)) =
          shift_bytes(low, high, phase);
      return;
    }
  }
  if (in_one) {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      x.words[j] = load_word<Word, streamed>(from + word * j);
    }
  } else {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (index + j < words) {
        const auto [its_row, its_at] = locate(index + j);
        const RunOfWords its_run = run_of(args, find_run(args, its_at));
        x.words[j] = load_word<Word, streamed>(source<word>(its_run, its_row, its_at));
      }
    }
  }
  char* const to = args.out + word * static_cast<uint64_t>(index);
  if (count == 1 || words - index >= count) {
    *reinterpret_cast<WordOf<word * count>*>(to) = x.pack;
  } else {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      if (index + j < words) {
        reinterpret_cast<Word*>(to)[j] = x.words[j];
      }
    }
  }
}

// Grid: a thread for each pack of the result.
template <int word, int count, bool one_row, bool window, bool streamed, typename Args>
__global__ __launch_bounds__(kCatWordsThreads, 8) void cat_line_kernel(const __grid_constant__ Args args) {
  overlapping(args, [&] { make_line<word, count, one_row, window, streamed>(args); });
}

// A column of packs, in `rows` rows. `window`: one that is in one run is not loaded by words but by the two
// aligned packs that it lies in. There are no branches for what is beyond the last row: the last row is made
// again, by the same thread or another, with the same bytes.
template <int word, int count, int rows, bool window, bool streamed, typename Args>
__device__ __forceinline__ void make_column(const Args& args) {
  using Word = WordOf<word>;
  using Pack = WordOf<word * count>;
  const auto [group, nth] = args.line(blockIdx.x * blockDim.x + threadIdx.x);
  const uint32_t row = min(group * rows, args.rows - 1);
  const uint32_t at = nth * count;
  const uint32_t last = args.rows - 1 - row;
  // Row i of the column, where rows are `stride` words apart.
  const auto below = [last](const char* first, uint32_t stride, uint32_t i) {
    return first + word * static_cast<uint64_t>(min(i, last) * stride);
  };
  PackOf<word, count> x[rows];
  const RunOfWords run = run_of(args, find_run(args, at));
  const char* const from = source<word>(run, row, at);
  bool in_one = count == 1 || at + count <= run.end;
  if constexpr (window) {
    in_one = in_one && windows_fit<word, count>(args, run, from, below(from, run.row_stride, rows - 1));
  }
  if (!in_one) {
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const RunOfWords its_run = run_of(args, find_run(args, at + j));
      const char* const its_from = source<word>(its_run, row, at + j);
#pragma unroll
      for (int i = 0; i < rows; ++i) {
        x[i].words[j] = load_word<Word, streamed>(below(its_from, its_run.row_stride, i));
      }
    }
  } else if constexpr (window) {
    Pack low[rows];
    Pack high[rows];
    uint32_t phase[rows];
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      const char* const address = below(from, run.row_stride, i);
      phase[i] = phase_of<sizeof(Pack)>(address);
      low[i] = load_word<Pack, streamed>(address - phase[i]);
      high[i] = load_word<Pack, streamed>(address - phase[i] + sizeof(Pack));
    }
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      x[i].pack = shift_bytes(low[i], high[i], phase[i]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        x[i].words[j] = load_word<Word, streamed>(below(from, run.row_stride, i) + word * j);
      }
    }
  }
  char* const to = args.out + word * static_cast<uint64_t>(row * args.out_row_stride + at);
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    *reinterpret_cast<Pack*>(const_cast<char*>(below(to, args.out_row_stride, i))) = x[i].pack;
  }
}

// Grid: a thread for each pack of every `rows` rows.
template <int word, int count, int rows, bool window, bool streamed, typename Args>
__global__ __launch_bounds__(kCatWordsThreads, rows* word >= 64 || rows == 8 ? 6 : 8) void cat_column_kernel(
    const __grid_constant__ Args args) {
  overlapping(args, [&] { make_column<word, count, rows, window, streamed>(args); });
}

}  // namespace aten_ext::cuda
