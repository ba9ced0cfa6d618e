// cat of runs of more than one dtype: as runs.cu, with the conversion to the result's dtype.
//
//   out[r, begin_i + k] = T(in_i[r, k])        0 <= r < rows, 0 <= k < run_i, T the promoted dtype
//
// Shapes, in elements: in_i is [rows, run_i], rows `row_stride_i` apart; the result is [rows, row_size].
// Bytes an element: sizeof(its dtype) read, sizeof(T) written; memory is the limit. A thread makes one
// aligned vector of 16 bytes and loads its elements as vectors too where the input is aligned to that many. A
// vector on a boundary is made element by element. A warp shares its vectors where the input's elements are
// the larger ones: a thread's own would lie in several sectors, far from its neighbours'. Alternatives and
// timings: docs/kernels/cat.md.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/search.cuh"
#include "device/sync.cuh"
#include "ops/cat/conversions.h"
#include "ops/cat/convert.cuh"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kMaxThreads = 256;
constexpr int kMinThreads = 64;
// 32 registers
constexpr int kMinBlocksPerSM = 8;
constexpr int64_t kBlocksPerSM = 2;

template <typename T>
constexpr int kPerVector = 16 / sizeof(T);

// ---- arguments ---------------------------------------------------------------------------------------

template <typename Index_, int bytes>
struct ConvertArguments {
  using Index = Index_;
  static constexpr int kBytesPerInput = sizeof(void*) + sizeof(Index) + sizeof(int64_t) + sizeof(Dtype);
  static constexpr int kCapacity = (bytes - 128) / kBytesPerInput;

  char* out;  // [rows, row_size]
  int64_t rows;
  int64_t row_size;
  Index vectors;  // to make in all
  Divider<Index>
      line;  // elements of a row where whole rows are made, otherwise vectors that cover one's part
  int32_t count;
  bool whole_rows;
  Dtype dtype[kCapacity];
  const void* data[kCapacity];
  int64_t row_stride[kCapacity];
  Index begin[kCapacity + 1];  // of the run in a row; the last is the end of all
};

// ---- kernel ------------------------------------------------------------------------------------------

// A vector of the result, or what of it is ours: elements [skip, end).
template <typename Index>
struct Vector {
  char* address;  // of the first that is ours
  int64_t row;
  Index at;  // in the row
  int skip;
};

// Vector number `index`; false if none of it is ours.
template <typename T, typename Args>
__device__ __forceinline__ bool locate(const Args& args, typename Args::Index index,
                                       Vector<typename Args::Index>& v) {
  using Index = typename Args::Index;
  constexpr Index kSize = kPerVector<T>;
  if (index >= args.vectors) {
    return false;
  }
  const auto [line, nth] = args.whole_rows ? Quotient<Index>{0, index} : args.line(index);
  char* const start = args.out + sizeof(T) * (line * args.row_size + args.begin[0]);
  const Index phase = static_cast<Index>((reinterpret_cast<uintptr_t>(start) & 15) / sizeof(T));
  const Index first = max(kSize * nth, phase);
  const Index from = first - phase;
  v.address = start + sizeof(T) * static_cast<uint64_t>(from);
  v.skip = static_cast<int>(first - kSize * nth);
  if (args.whole_rows) {
    const auto [row, at] = args.line(from);
    v.row = static_cast<int64_t>(row);
    v.at = at;
    return true;
  }
  v.row = static_cast<int64_t>(line);
  v.at = args.begin[0] + from;
  return v.at < args.begin[args.count];
}

template <typename Args>
__device__ __forceinline__ int find_run(const Args& args, typename Args::Index at) {
  return find_last_begin(args.begin, at, 0, args.count);
}

// Element by element.
template <typename T, typename Args>
__device__ __forceinline__ void make_elements(const Args& args, const Vector<typename Args::Index>& v) {
  int64_t row = v.row;
  auto at = v.at;
  int run = find_run(args, at);
  T* to = reinterpret_cast<T*>(v.address);
#pragma unroll 1
  for (int i = v.skip; i < kPerVector<T>; ++i, ++to) {
    if (args.data[run] != nullptr) {
      *to = load_one_as<T>(args.data[run], row * args.row_stride[run] + (at - args.begin[run]),
                           args.dtype[run]);
    }
    if (++at == args.begin[run + 1] && ++run == args.count) {
      if (!args.whole_rows || ++row == args.rows) {
        return;
      }
      run = 0;
      at = 0;
    }
  }
}

// The vectors of a warp, of elements that lie one after another: neighbours are loaded, 16 bytes at a time,
// and stored by neighbouring threads. `from` and `to` are the first thread's.
template <typename T, typename From>
__device__ __forceinline__ void make_together(T* to, const From* from) {
  constexpr int kSize = 16 / sizeof(From);
  constexpr int kPieces = kPerVector<T> / kSize;
  using Word = std::conditional_t<kSize * sizeof(T) == 4, uint32_t, uint2>;
  static_assert(sizeof(Word) == kSize * sizeof(T));
  const int lane = threadIdx.x % 32;
  From x[kPieces][kSize];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    load_elements(x[i], from + kSize * (32 * i + lane));
  }
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    T y[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      y[j] = convert<T>(x[i][j]);
    }
    Word word;
    memcpy(&word, y, sizeof(word));
    reinterpret_cast<Word*>(to)[32 * i + lane] = word;
  }
}

// Makes one vector with each thread of the block.
template <typename T, typename Args>
__device__ __forceinline__ void make_vector(const Args& args) {
  using Index = typename Args::Index;
  constexpr Index kSize = kPerVector<T>;
  Vector<Index> v{};
  const bool exists = locate<T>(args, static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x, v);
  const int run = exists ? find_run(args, v.at) : 0;
  const bool whole =
      exists && v.skip == 0 && args.begin[run + 1] - v.at >= kSize && args.data[run] != nullptr;
  const Dtype dtype = args.dtype[run];
  const int64_t element = whole ? v.row * args.row_stride[run] + (v.at - args.begin[run]) : 0;

  if constexpr (kLargerDtypes<T> != 0) {
    // Vectors of one run and one row follow each other.
    const bool is_of_first = run == __shfl_sync(~0u, run, 0) & v.row == __shfl_sync(~0u, v.row, 0);
    const bool is_larger = (kLargerDtypes<T> >> static_cast<int>(dtype) & 1) != 0;
    if (__all_sync(~0u, whole && is_larger && is_of_first)) {
      const int before = static_cast<int>(kSize) * (threadIdx.x % 32);
      with_dtype_to<T>(dtype, [&](auto tag) {
        using From = decltype(tag);
        if constexpr (sizeof(From) > sizeof(T)) {
          make_together(reinterpret_cast<T*>(v.address) - before,
                        static_cast<const From*>(args.data[run]) + (element - before));
        }
      });
      return;
    }
  }
  if (whole) {
    T x[1][kSize];
    load_as(x, {args.data[run]}, {element}, dtype);
    uint4 bits;
    memcpy(&bits, x[0], sizeof(bits));
    *reinterpret_cast<uint4*>(v.address) = bits;
  } else if (exists) {
    make_elements<T>(args, v);
  }
}

// Grid: one thread for each vector.
template <typename T, typename Args>
__global__ __launch_bounds__(kMaxThreads,
                             kMinBlocksPerSM) void cat_convert_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  make_vector<T>(args);
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename T, typename Args>
cudaError_t launch_list(const CatRunsParams& p, LaunchSequence& sequence) {
  using Index = typename Args::Index;
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  static_assert(sizeof(Args) - sizeof(Args::begin) <= kIndexedArgumentBytes, "begins begin too late");
  constexpr int64_t kSize = kPerVector<T>;

  Args args;
  args.out = static_cast<char*>(p.out);
  args.rows = p.rows;
  args.row_size = p.row_size;
  const int64_t misaligned = static_cast<int64_t>((reinterpret_cast<uintptr_t>(p.out) & 15) / sizeof(T));
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    args.count = static_cast<int>(std::min<int64_t>(p.count - from, Args::kCapacity));
    for (int i = 0; i < args.count; ++i) {
      const CatRun& run = p.runs[from + i];
      args.data[i] = run.data;
      args.begin[i] = static_cast<Index>(run.begin);
      args.row_stride[i] = run.row_stride;
      args.dtype[i] = run.dtype;
    }
    const CatRun& last = p.runs[from + args.count - 1];
    args.begin[args.count] = static_cast<Index>(last.begin + last.size);
    const int64_t span = args.begin[args.count] - args.begin[0];
    args.whole_rows = span == p.row_size;
    int64_t vectors = 0;
    if (args.whole_rows) {
      vectors = ceil_div(misaligned + p.rows * span, kSize);
      args.line = Divider<Index>(static_cast<Index>(span));
    } else {
      const int64_t per_row = ceil_div(kSize - 1 + span, kSize);
      vectors = per_row * p.rows;
      args.line = Divider<Index>(static_cast<Index>(per_row));
    }
    args.vectors = static_cast<Index>(vectors);
    int threads = kMinThreads;
    while (threads < kMaxThreads && vectors > kBlocksPerSM * p.gpu.multiprocessors * threads) {
      threads *= 2;
    }
    if (const cudaError_t error =
            sequence.launch(cat_convert_kernel<T, Args>, ceil_div(vectors, int64_t{threads}), threads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_dtype(const CatRunsParams& p, LaunchSequence& sequence) {
  using Small = ConvertArguments<uint32_t, kSmallArgumentBytes>;
  using Large = ConvertArguments<uint32_t, kLargeArgumentBytes>;
  using Wide = ConvertArguments<uint64_t, kSmallArgumentBytes>;
  static_assert(sizeof(Small) <= kSmallArgumentBytes && sizeof(Large) <= kLargeArgumentBytes &&
                    sizeof(Wide) <= kSmallArgumentBytes,
                "kernel arguments too large");
  if (p.rows * p.row_size > kCatIndexLimit - 31) {
    return launch_list<T, Wide>(p, sequence);
  }
  if (p.count > Small::kCapacity && p.gpu.argument_bytes >= kLargeArgumentBytes) {
    return launch_list<T, Large>(p, sequence);
  }
  return launch_list<T, Small>(p, sequence);
}

// Whether no vector has elements of two runs.
bool are_vectors_whole(const CatRunsParams& p) {
  uint64_t all = reinterpret_cast<uintptr_t>(p.out) | (p.rows > 1 ? p.row_size * p.element_size : 0);
  for (int64_t i = 0; i < p.count; ++i) {
    all |= static_cast<uint64_t>(p.runs[i].begin * p.element_size);
  }
  return all % 16 == 0;
}

}  // namespace

cudaError_t launch_cat_convert(const CatRunsParams& params, LaunchSequence& sequence) {
  if (!converts_in_vectors(params.gpu, params.rows, params.row_size, params.count,
                           are_vectors_whole(params))) {
    return launch_cat_gather(params, /*converts=*/true, sequence);
  }
  return with_element_type(
      params.dtype, params.element_size, /*converts=*/true,
      [&](auto tag, auto converts) {
        if constexpr (converts) {
          return launch_dtype<decltype(tag)>(params, sequence);
        } else {
          return cudaErrorInvalidValue;
        }
      },
      cudaErrorInvalidValue);
}

}  // namespace aten_ext::cuda
