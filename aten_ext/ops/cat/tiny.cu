// cat of many small contiguous inputs: a block, or several, for each input, and a thread for each word.
//
//   out[r, begin_i + k] = in_i[r, k]        0 <= r < rows, 0 <= k < run_i, in words
//
// Shapes: in_i is [rows, run_i], contiguous; a word is as in words.cu. There, the threads of a warp would
// look up as many inputs as they have lanes, one after the other; here, what a block reads of the arguments
// depends on its number alone, so that nothing but the one load of data waits for it. Bytes do not matter,
// latency does.
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

// One input, in words. All that a block reads of it is in one line of constant memory.
struct alignas(16) TinyRun {
  const char* data;
  uint32_t begin;  // in a row
  uint32_t size;
};

template <int bytes>
struct TinyArguments {
  static constexpr int kCapacity = (bytes - 64) / static_cast<int>(sizeof(TinyRun)) / 4 * 4;

  char* out;
  uint32_t rows;
  uint32_t row_size;
  Divider<uint32_t> blocks;  // of an input
  TinyRun runs[kCapacity];
};

// Grid: for each input, as many blocks as the largest has.
template <int word, typename Args>
__global__ __launch_bounds__(kMaxThreads) void cat_tiny_kernel(const __grid_constant__ Args args) {
  using Word = WordOf<word>;
  launch_dependents();
  const auto [input, block] = args.blocks(blockIdx.x);
  const TinyRun& run = args.runs[input];
  const uint32_t i = block * blockDim.x + threadIdx.x;
  if (i < args.rows * run.size) {
    const Word x = reinterpret_cast<const Word*>(run.data)[i];
    const uint32_t row = args.rows == 1 ? 0 : i / run.size;
    reinterpret_cast<Word*>(args.out)[run.begin + row * args.row_size + (i - row * run.size)] = x;
  }
  wait_for_previous_launches();
}

template <int word, int bytes>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  using Args = TinyArguments<bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(sizeof(Args) - sizeof(Args::runs) <= kIndexedArgumentBytes, "runs begin too late");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  const auto words = [&p](int64_t elements) {
    return static_cast<uint32_t>(elements * p.element_size / word);
  };
  const int64_t most = p.rows * words(longest_run(p));
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
    const int64_t count = std::min<int64_t>(p.count - from, Args::kCapacity);
    for (int64_t i = 0; i < count; ++i) {
      args.runs[i] = {static_cast<const char*>(runs[i].data), words(runs[i].begin), words(runs[i].size)};
    }
    if (const cudaError_t error = sequence.launch(cat_tiny_kernel<word, Args>, count * blocks, threads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <int word>
cudaError_t launch_word(const CatRunsParams& p, LaunchSequence& sequence) {
  if (p.count <= TinyArguments<kFewArgumentBytes>::kCapacity) {
    return launch_list<word, kFewArgumentBytes>(p, sequence);
  }
  return p.count > TinyArguments<kSmallArgumentBytes>::kCapacity &&
                 p.gpu.argument_bytes >= kLargeArgumentBytes
             ? launch_list<word, kLargeArgumentBytes>(p, sequence)
             : launch_list<word, kSmallArgumentBytes>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_tiny(const CatRunsParams& params, int word, LaunchSequence& sequence) {
  return with_word(word, [&](auto bytes) { return launch_word<bytes>(params, sequence); });
}

}  // namespace aten_ext::cuda
