// cat of runs of bytes, at any alignment.
//
//   out[r, begin_i + k] = in_i[r, k]        0 <= r < rows, 0 <= k < run_i, begin_i = run_0 + ... + run_(i-1)
//
// Shapes, in bytes: in_i is [rows, run_i], contiguous; the result is [rows, row_bytes]. Words
// (words.cu) are faster where they fit. This kernel takes any alignment, positions of 64 bits and results of
// which another launch fills a part; rows that are apart go on to gather.cu.
//
// Bytes: 2 * rows * row_bytes; memory is the limit. A thread makes two aligned vectors of 16 bytes of the
// result. It finds the row by a division and the run by a search in the begins, which travel in the kernel's
// arguments. Where source and destination differ in phase, two aligned loads are shifted into one vector; the
// second load hits L1. Vectors on a boundary of runs are put together from both. No load leaves its input.
// Alternatives and timings: docs/kernels/cat.md.
#include "ops/cat/kernels.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/search.cuh"
#include "device/sync.cuh"
#include "ops/cat/window.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Vectors of a thread, whose loads are under way together.
constexpr int kVectors = 2;
constexpr int kMaxThreads = 256;
constexpr int kMinThreads = 64;
// 64 registers, 32 warps an SM with up to four loads of 16 bytes each in flight: 64 KB, of which 4.2 TB/s at
// 0.8 us need 26.
constexpr int kMinBlocksPerSM = 4;
// Blocks shrink rather than leave most of the GPU idle.
constexpr int64_t kBlocksPerSM = 2;

// Few inputs, as most calls have, are to cost no more of a launch than they need.
constexpr int kTinyArgumentBytes = 1024;

// ---- arguments ---------------------------------------------------------------------------------------

// Positions in a row, and in the result where it is small enough, are Offset.
template <typename Offset_, int bytes>
struct RunsArguments {
  using Offset = Offset_;
  static constexpr int kHints = bytes > kSmallArgumentBytes ? 256 : bytes > kTinyArgumentBytes ? 64 : 8;
  static constexpr int kBytesPerInput = sizeof(void*) + sizeof(Offset);
  static constexpr int kOtherBytes = 128 + (kHints + 1) * sizeof(uint16_t);
  static constexpr int kCapacity = (bytes - kOtherBytes) / kBytesPerInput;

  char* out;  // [rows, row_bytes]
  int64_t rows;
  int64_t row_bytes;
  Offset vectors;        // to make in all
  Divider<Offset> line;  // bytes of a row where whole rows are made, otherwise vectors that cover one's part
  Divider<Offset> run;   // bytes of a run, if all are as long
  int32_t count;
  int32_t hint_shift;
  bool whole_rows;
  bool equal_runs;
  // hint[i]: the run at position begin[0] + (i << hint_shift).
  uint16_t hint[kHints + 1];
  const char* data[kCapacity];
  Offset begin[kCapacity + 1];  // of the run in a row; the last is the end of all
};

// ---- kernel ------------------------------------------------------------------------------------------

// A vector of the result.
template <typename Offset>
struct Vector {
  char* address;  // multiple of 16
  int64_t row;
  Offset at;  // in the row, of its first byte that is ours
  int skip;   // bytes before that one
};

// Vector number `index`; false if none of it is ours.
template <typename Args>
__device__ __forceinline__ bool locate(const Args& args, typename Args::Offset index,
                                       Vector<typename Args::Offset>& v) {
  using Offset = typename Args::Offset;
  if (index >= args.vectors) {
    return false;
  }
  if (args.whole_rows) {
    const Offset phase = phase_of(args.out);
    const Offset first = max(16 * index, phase);
    const auto [row, at] = args.line(first - phase);
    v = {args.out - phase + 16 * static_cast<uint64_t>(index), static_cast<int64_t>(row), at,
         static_cast<int>(first - 16 * index)};
    return true;
  }
  const auto [row, nth] = args.line(index);
  char* const start = args.out + row * args.row_bytes + args.begin[0];
  const Offset phase = phase_of(start);
  const Offset first = max(16 * nth, phase);
  v = {start - phase + 16 * static_cast<uint64_t>(nth), static_cast<int64_t>(row),
       args.begin[0] + (first - phase), static_cast<int>(first - 16 * nth)};
  return v.at < args.begin[args.count];
}

// The run at a position of a row.
template <typename Args>
__device__ __forceinline__ int find_run(const Args& args, typename Args::Offset at) {
  const auto from = at - args.begin[0];
  if (args.equal_runs) {
    return static_cast<int>(args.run(from).quotient);
  }
  const int part = static_cast<int>(from >> args.hint_shift);
  return find_last_begin(args.begin, at, args.hint[part], args.hint[part + 1] + 1);
}

// Where the run's byte for position `at` of row `row` is, and all that may be read around it.
template <typename Args>
__device__ __forceinline__ const char* source(const Args& args, int run, int64_t row,
                                              typename Args::Offset at, Extent& extent) {
  const int64_t size = args.begin[run + 1] - args.begin[run];
  const char* const data = args.data[run];
  extent = {data, data + args.rows * size};
  return data + row * size + (at - args.begin[run]);
}

// A vector that is on a boundary of runs, at the end of the result or of an input, or partly not ours.
template <int unit, typename Args>
__device__ __forceinline__ void put_together(const Args& args, const Vector<typename Args::Offset>& v) {
  using Offset = typename Args::Offset;
  uint4 value = {0, 0, 0, 0};
  int64_t row = v.row;
  Offset at = v.at;
  int run = find_run(args, at);
  int from = v.skip;  // not stored yet
  int filled = v.skip;
  while (filled < 16) {
    const Offset left = args.begin[run + 1] - at;
    const int count = left < static_cast<Offset>(16 - filled) ? static_cast<int>(left) : 16 - filled;
    if (args.data[run] != nullptr) {
      Extent extent;
      const char* const address = source(args, run, row, at, extent);
      value = merge_bytes(value, load_window<unit>(address - filled, extent), filled, filled + count);
    } else {
      store_granule<unit>(v.address, value, from, filled);
      from = filled + count;
    }
    filled += count;
    at += count;
    if (at == args.begin[run + 1] && ++run == args.count) {
      if (!args.whole_rows || ++row == args.rows) {
        break;
      }
      run = 0;
      at = 0;
    }
  }
  store_granule<unit>(v.address, value, from, filled);
}

template <int unit, typename Args>
__device__ __forceinline__ void make_vectors(const Args& args) {
  using Offset = typename Args::Offset;
  const Offset first = static_cast<Offset>(blockIdx.x) * (kVectors * blockDim.x) + threadIdx.x;
  // Those that are sixteen bytes of one run: all loads first.
  uint4 low[kVectors];
  uint4 high[kVectors];
  uint32_t shift[kVectors];
  char* to[kVectors];
  uint32_t slow = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[i] = nullptr;
    Vector<Offset> v;
    if (!locate(args, first + i * blockDim.x, v)) {
      continue;
    }
    const int run = find_run(args, v.at);
    const Offset left = args.begin[run + 1] - v.at;
    Extent extent;
    const char* const address = source(args, run, v.row, v.at, extent);
    if (v.skip != 0 || left < 16 || args.data[run] == nullptr || !window_fits(address, extent)) {
      slow |= 1u << i;
      continue;
    }
    to[i] = v.address;
    shift[i] = phase_of(address);
    low[i] = *reinterpret_cast<const uint4*>(address - shift[i]);
    if (shift[i] != 0) {
      high[i] = *reinterpret_cast<const uint4*>(address - shift[i] + 16);
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (to[i] != nullptr) {
      *reinterpret_cast<uint4*>(to[i]) = shift[i] == 0 ? low[i] : shift_bytes(low[i], high[i], shift[i]);
    }
  }
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    Vector<Offset> v;
    if (slow >> i & 1 && locate(args, first + i * blockDim.x, v)) {
      put_together<unit>(args, v);
    }
  }
}

// Grid: one thread for each `kVectors` vectors.
template <int unit, typename Args>
__global__ __launch_bounds__(kMaxThreads,
                             kMinBlocksPerSM) void cat_runs_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  make_vectors<unit>(args);
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

// Fills what `args` says of the runs [from, from + count).
template <typename Args>
void describe_runs(Args& args, const CatRunsParams& p, int64_t from, int count) {
  using Offset = typename Args::Offset;
  args.count = count;
  args.equal_runs = true;
  for (int i = 0; i < count; ++i) {
    const CatRun& run = p.runs[from + i];
    args.data[i] = static_cast<const char*>(run.data);
    args.begin[i] = static_cast<Offset>(run.begin * p.element_size);
    args.equal_runs = args.equal_runs && run.size == p.runs[from].size;
  }
  const CatRun& last = p.runs[from + count - 1];
  args.begin[count] = static_cast<Offset>((last.begin + last.size) * p.element_size);
  args.run = Divider<Offset>(static_cast<Offset>(p.runs[from].size * p.element_size));
  args.hint_shift = 0;
  const Offset span = args.begin[count] - args.begin[0];
  while ((span - 1) >> args.hint_shift >= Args::kHints) {
    ++args.hint_shift;
  }
  int run = 0;
  for (int i = 0; i <= Args::kHints; ++i) {
    const uint64_t at = args.begin[0] + (static_cast<uint64_t>(i) << args.hint_shift);
    while (run + 1 < count && args.begin[run + 1] <= at) {
      ++run;
    }
    args.hint[i] = static_cast<uint16_t>(run);
  }
}

template <int unit, typename Args>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  using Offset = typename Args::Offset;
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  static_assert(Args::kCapacity <= std::numeric_limits<uint16_t>::max(), "a hint is 16 bits");
  static_assert(sizeof(Args) - sizeof(Args::begin) <= kIndexedArgumentBytes, "begins begin too late");

  Args args;
  args.out = static_cast<char*>(p.out);
  args.rows = p.rows;
  args.row_bytes = p.row_size * p.element_size;
  const uintptr_t out = reinterpret_cast<uintptr_t>(p.out);
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    const int count = static_cast<int>(std::min<int64_t>(p.count - from, Args::kCapacity));
    describe_runs(args, p, from, count);
    const int64_t span = args.begin[count] - args.begin[0];
    args.whole_rows = span == args.row_bytes;
    int64_t vectors = 0;
    if (args.whole_rows) {
      vectors = ceil_div(static_cast<int64_t>(out & 15) + p.rows * span, int64_t{16});
      args.line = Divider<Offset>(static_cast<Offset>(span));
    } else {
      // The most that any row's part touches: where rows differ in phase, one more than its bytes fill.
      const int64_t phase = p.rows == 1 || args.row_bytes % 16 == 0 ? (out + args.begin[0]) & 15 : 15;
      const int64_t per_row = ceil_div(phase + span, int64_t{16});
      vectors = per_row * p.rows;
      args.line = Divider<Offset>(static_cast<Offset>(per_row));
    }
    args.vectors = static_cast<Offset>(vectors);
    int threads = kMinThreads;
    while (threads < kMaxThreads && vectors > kBlocksPerSM * p.gpu.multiprocessors * threads * kVectors) {
      threads *= 2;
    }
    const int64_t per_block = int64_t{threads} * kVectors;
    if (const cudaError_t error =
            sequence.launch(cat_runs_kernel<unit, Args>, ceil_div(vectors, per_block), threads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <int unit>
cudaError_t launch_unit(const CatRunsParams& p, LaunchSequence& sequence) {
  using Tiny = RunsArguments<uint32_t, kTinyArgumentBytes>;
  using Small = RunsArguments<uint32_t, kSmallArgumentBytes>;
  using Large = RunsArguments<uint32_t, kLargeArgumentBytes>;
  using Wide = RunsArguments<uint64_t, kSmallArgumentBytes>;
  static_assert(sizeof(Tiny) <= kTinyArgumentBytes && sizeof(Small) <= kSmallArgumentBytes &&
                    sizeof(Large) <= kLargeArgumentBytes && sizeof(Wide) <= kSmallArgumentBytes,
                "kernel arguments too large");
  // A vector may begin 15 bytes before the result and end 15 after it.
  if (p.rows * p.row_size * p.element_size > kCatIndexLimit - 31) {
    return launch_list<unit, Wide>(p, sequence);
  }
  if (p.count <= Tiny::kCapacity) {
    return launch_list<unit, Tiny>(p, sequence);
  }
  if (p.count > Small::kCapacity && p.gpu.argument_bytes >= kLargeArgumentBytes) {
    return launch_list<unit, Large>(p, sequence);
  }
  return launch_list<unit, Small>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_runs(const CatRunsParams& params, LaunchSequence& sequence) {
  const CatRun& whole = *params.runs;
  if (params.count == 1 && whole.data != nullptr && (params.rows == 1 || whole.row_stride == whole.size)) {
    // As upstream does: no kernel of ours is shorter.
    return sequence.copy(params.out, whole.data, params.rows * params.row_size * params.element_size);
  }
  if (const cudaError_t error = launch_cat_words(params, sequence); error != cudaErrorNotSupported) {
    return error;
  }
  if (has_rows_apart(params)) {
    return launch_cat_gather(params, /*converts=*/false, sequence);
  }
  // Of runs of bytes, the element size matters at their ends only: addresses are multiples of it.
  switch (params.element_size) {
    case 1:
      return launch_unit<1>(params, sequence);
    case 2:
      return launch_unit<2>(params, sequence);
    default:
      return launch_unit<4>(params, sequence);
  }
}

}  // namespace aten_ext::cuda
