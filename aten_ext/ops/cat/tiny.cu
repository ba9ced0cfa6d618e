// cat of many contiguous inputs of a few bytes each: a warp for each input.
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
#include "device/sync.cuh"
#include "ops/cat/kernels.h"
#include "ops/cat/words.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 32;

// Everything in words.
template <int bytes>
struct TinyArguments {
  static constexpr int kCapacity =
      (bytes - 32) / static_cast<int>(sizeof(void*) + sizeof(uint32_t)) / 16 * 16;

  char* out;
  uint32_t rows;
  uint32_t row_size;
  const char* data[kCapacity];
  uint32_t begin[kCapacity + 1];  // of the run in a row; the last is the end of all
};

// Grid: a block for each input.
template <int word, typename Args>
__global__ __launch_bounds__(kThreads) void cat_tiny_kernel(const __grid_constant__ Args args) {
  using Word = WordOf<word>;
  launch_dependents();
  const uint32_t begin = args.begin[blockIdx.x];
  const uint32_t size = args.begin[blockIdx.x + 1] - begin;
  const auto* const from = reinterpret_cast<const Word*>(args.data[blockIdx.x]);
  auto* const to = reinterpret_cast<Word*>(args.out) + begin;
  for (uint32_t i = threadIdx.x; i < args.rows * size; i += kThreads) {
    const uint32_t row = args.rows == 1 ? 0 : i / size;
    to[row * args.row_size + (i - row * size)] = from[i];
  }
  wait_for_previous_launches();
}

template <int word, int bytes>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  using Args = TinyArguments<bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  const auto words = [&p](int64_t elements) {
    return static_cast<uint32_t>(elements * p.element_size / word);
  };
  Args args;
  args.out = static_cast<char*>(p.out);
  args.rows = static_cast<uint32_t>(p.rows);
  args.row_size = words(p.row_size);
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    const CatRun* const runs = p.runs + from;
    const int64_t count = std::min<int64_t>(p.count - from, Args::kCapacity);
    for (int64_t i = 0; i < count; ++i) {
      args.data[i] = static_cast<const char*>(runs[i].data);
      args.begin[i] = words(runs[i].begin);
    }
    args.begin[count] = words(runs[count - 1].begin + runs[count - 1].size);
    if (const cudaError_t error = sequence.launch(cat_tiny_kernel<word, Args>, count, kThreads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <int word>
cudaError_t launch_word(const CatRunsParams& p, LaunchSequence& sequence) {
  return p.count > TinyArguments<kSmallArgumentBytes>::kCapacity &&
                 p.gpu.argument_bytes >= kLargeArgumentBytes
             ? launch_list<word, kLargeArgumentBytes>(p, sequence)
             : launch_list<word, kSmallArgumentBytes>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_tiny(const CatRunsParams& params, int word, LaunchSequence& sequence) {
  switch (word) {
    case 1:
      return launch_word<1>(params, sequence);
    case 2:
      return launch_word<2>(params, sequence);
    case 4:
      return launch_word<4>(params, sequence);
    case 8:
      return launch_word<8>(params, sequence);
    default:
      return launch_word<16>(params, sequence);
  }
}

}  // namespace aten_ext::cuda
