// cat of contiguous inputs, input by input: each has blocks of its own, and a thread makes a word or a few.
//
//   out[r, begin_i + k] = in_i[r, k]        0 <= r < rows, 0 <= k < run_i, in words
//
// Shapes: in_i is [rows, run_i], contiguous; a word is as in words.cu. There, the threads of a warp look up
// whose their words are, one input after the other; here, what a block reads of the arguments depends on its
// number alone, so that nothing but the loads of data waits for it. In return, threads of inputs that are
// shorter than the longest are idle. Upstream goes through its inputs in this way too. Where most would be
// idle, each input has as many blocks as it needs, and a table says whose a block is. When which: words.cu.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/sync.cuh"
#include "ops/cat/kernels.h"
#include "ops/cat/words.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kMinThreads = 32;
constexpr int kMaxThreads = 128;
// Most lists are to cost no more of a launch than they need.
constexpr int kFewArgumentBytes = 1024;
// Inputs of unlike lengths, of a short table of blocks and of a long one.
constexpr int kFewUneven = 24;
constexpr int kManyUneven = 128;

// One input, in words. All that a block reads of it is in one line of constant memory.
struct alignas(16) InputRun {
  const char* data;
  uint32_t begin;  // in a row
  uint32_t size;
};

template <int bytes>
struct InputArguments {
  static constexpr int kCapacity = (bytes - 64) / static_cast<int>(sizeof(InputRun)) / 4 * 4;

  char* out;
  uint32_t rows;
  uint32_t row_size;
  Divider<uint32_t> blocks;  // of an input
  InputRun runs[kCapacity];
};

template <int bytes, int inputs>
struct UnevenArguments {
  static constexpr int kCapacity = inputs;
  static constexpr int kBlocks =
      (bytes - 32 - inputs * static_cast<int>(sizeof(InputRun) + sizeof(uint16_t))) / 16 * 16;
  static_assert(inputs <= 256 && kBlocks <= 65536);

  char* out;
  uint32_t rows;
  uint32_t row_size;
  InputRun runs[kCapacity];
  uint16_t first_block[kCapacity];
  uint8_t input[kBlocks];  // of each block
};

// `count` words of an input, a block apart, from word `first` on.
template <int word, int count, typename Args>
__device__ __forceinline__ void copy_words(const Args& args, const InputRun& run, uint32_t first) {
  using Word = WordOf<word>;
  const uint32_t threads = blockDim.x;
  const uint32_t words = args.rows * run.size;
  if (first >= words) {
    return;
  }
  Word x[count];
#pragma unroll
  for (int j = 0; j < count; ++j) {
    const uint32_t i = first + j * threads;
    if (i < words) {
      x[j] = reinterpret_cast<const Word*>(run.data)[i];
    }
  }
  // One division finds the first word's place, another one how far a block is in rows.
  uint32_t row = args.rows == 1 ? 0 : first / run.size;
  uint32_t at = first - row * run.size;
  const uint32_t rows = args.rows == 1 ? 0 : threads / run.size;
  const uint32_t columns = threads - rows * run.size;
#pragma unroll
  for (int j = 0; j < count; ++j) {
    if (first + j * threads < words) {
      reinterpret_cast<Word*>(args.out)[run.begin + row * args.row_size + at] = x[j];
    }
    row += rows;
    at += columns;
    if (args.rows > 1 && at >= run.size) {
      at -= run.size;
      ++row;
    }
  }
}

// Grid: for each input, as many blocks as the largest has. A thread makes `count` words.
template <int word, int count, typename Args>
__global__ __launch_bounds__(kMaxThreads) void cat_inputs_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  const auto [input, block] = args.blocks(blockIdx.x);
  copy_words<word, count>(args, args.runs[input], block * count * blockDim.x + threadIdx.x);
  wait_for_previous_launches();
}

// Grid: for each input, as many blocks as it needs. A thread makes `count` words.
template <int word, int count, typename Args>
__global__ __launch_bounds__(kMaxThreads) void cat_uneven_inputs_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  const int input = args.input[blockIdx.x];
  const uint32_t block = blockIdx.x - args.first_block[input];
  copy_words<word, count>(args, args.runs[input], block * count * blockDim.x + threadIdx.x);
  wait_for_previous_launches();
}

template <int word, int count, int bytes>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  using Args = InputArguments<bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(sizeof(Args) - sizeof(Args::runs) <= kIndexedArgumentBytes, "runs begin too late");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  const auto words = [&p](int64_t elements) {
    return static_cast<uint32_t>(elements * p.element_size / word);
  };
  const int64_t most = ceil_div(p.rows * words(longest_run(p)), int64_t{count});
  int threads = kMinThreads;
  while (threads < kMaxThreads && threads < most) {
    threads *= 2;
  }
  const int64_t blocks = ceil_div(most, int64_t{threads});

  Args args;
  args.blocks = Divider<uint32_t>(static_cast<uint32_t>(blocks));
  args.out = static_cast<char*>(p.out);
  args.rows = static_cast<uint32_t>(p.rows);
  args.row_size = words(p.row_size);
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    const CatRun* const runs = p.runs + from;
    const int64_t inputs = std::min<int64_t>(p.count - from, Args::kCapacity);
    for (int64_t i = 0; i < inputs; ++i) {
      args.runs[i] = {static_cast<const char*>(runs[i].data), words(runs[i].begin), words(runs[i].size)};
    }
    if (const cudaError_t error =
            sequence.launch(cat_inputs_kernel<word, count, Args>, inputs * blocks, threads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

// Blocks that an input needs.
template <int word, int count>
int64_t blocks_of(const CatRunsParams& p, const CatRun& run) {
  return ceil_div(p.rows * run.size * p.element_size / word, int64_t{kMaxThreads} * count);
}

template <int word, int count, typename Args>
cudaError_t launch_uneven_list(const CatRunsParams& p, LaunchSequence& sequence) {
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  const auto words = [&p](int64_t elements) {
    return static_cast<uint32_t>(elements * p.element_size / word);
  };
  Args args;
  args.out = static_cast<char*>(p.out);
  args.rows = static_cast<uint32_t>(p.rows);
  args.row_size = words(p.row_size);
  int64_t blocks = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    const CatRun& run = p.runs[i];
    args.runs[i] = {static_cast<const char*>(run.data), words(run.begin), words(run.size)};
    args.first_block[i] = static_cast<uint16_t>(blocks);
    const int64_t of_input = blocks_of<word, count>(p, run);
    std::fill_n(args.input + blocks, of_input, static_cast<uint8_t>(i));
    blocks += of_input;
  }
  return sequence.launch(cat_uneven_inputs_kernel<word, count, Args>, blocks, kMaxThreads, args);
}

template <int word, int count>
cudaError_t launch_uneven(const CatRunsParams& p, LaunchSequence& sequence) {
  using Few = UnevenArguments<kFewArgumentBytes, kFewUneven>;
  using Many = UnevenArguments<kSmallArgumentBytes, kManyUneven>;
  static_assert(sizeof(Few) <= kFewArgumentBytes && sizeof(Many) <= kSmallArgumentBytes,
                "kernel arguments too large");
  int64_t blocks = 0;
  for (int64_t i = 0; i < p.count; ++i) {
    blocks += blocks_of<word, count>(p, p.runs[i]);
  }
  if (p.count <= Few::kCapacity && blocks <= Few::kBlocks) {
    return launch_uneven_list<word, count, Few>(p, sequence);
  }
  return p.count <= Many::kCapacity && blocks <= Many::kBlocks
             ? launch_uneven_list<word, count, Many>(p, sequence)
             : cudaErrorNotSupported;
}

template <int word, int count>
cudaError_t launch_words(const CatRunsParams& p, LaunchSequence& sequence) {
  if (p.count <= InputArguments<kFewArgumentBytes>::kCapacity) {
    return launch_list<word, count, kFewArgumentBytes>(p, sequence);
  }
  return p.count > InputArguments<kSmallArgumentBytes>::kCapacity &&
                 p.gpu.argument_bytes >= kLargeArgumentBytes
             ? launch_list<word, count, kLargeArgumentBytes>(p, sequence)
             : launch_list<word, count, kSmallArgumentBytes>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_by_inputs(const CatRunsParams& params, int word, int words_of_thread,
                                 LaunchSequence& sequence) {
  return with_word(word, [&](auto bytes) {
    switch (words_of_thread) {
      case 1:
        return launch_words<bytes, 1>(params, sequence);
      case 2:
        return launch_words<bytes, 2>(params, sequence);
      case 4:
        // Of smaller words nobody asks for four.
        return launch_words<bytes, bytes == 4 ? 4 : kCatWordsOfList<bytes>>(params, sequence);
      default:
        return launch_words<bytes, kCatWordsOfList<bytes>>(params, sequence);
    }
  });
}

cudaError_t launch_cat_by_uneven_inputs(const CatRunsParams& params, int word, int words_of_thread,
                                        LaunchSequence& sequence) {
  return with_word(word, [&](auto bytes) {
    // Of single bytes nobody asks for four.
    return words_of_thread == 1 ? launch_uneven<bytes, 1>(params, sequence)
                                : launch_uneven<bytes, bytes == 1 ? 1 : 4>(params, sequence);
  });
}

}  // namespace aten_ext::cuda
