// cat of runs of more than one dtype: as runs.cu, with the conversion to the result's dtype.
//
//   out[r, begin_i + k] = T(in_i[r, k])        0 <= r < rows, 0 <= k < run_i, T the promoted dtype
//
// Shapes, in elements: in_i is [rows, run_i], rows `row_stride_i` apart; the result is [rows, row_size].
// Bytes an element: sizeof(its dtype) read, sizeof(T) written; memory is the limit. A thread makes one
// aligned vector of 16 bytes and loads its elements as vectors too where the input is aligned to that many. A
// vector on a boundary is made element by element. Alternatives and timings: docs/kernels/cat.md.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/search.cuh"
#include "device/sync.cuh"
#include "ops/cat/convert.cuh"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kVectors = 1;  // of a thread
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

template <typename T, typename Args>
__device__ __forceinline__ void make_vectors(const Args& args) {
  using Index = typename Args::Index;
  const Index first = static_cast<Index>(blockIdx.x) * (kVectors * blockDim.x) + threadIdx.x;
  T x[kVectors][kPerVector<T>];
  char* to[kVectors];
  const void* data[kVectors];
  int64_t element[kVectors];
  Dtype dtype[kVectors] = {};
  uint32_t slow = 0;
  bool together = true;  // both are sixteen bytes of one run, and those of one dtype
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    to[i] = nullptr;
    Vector<Index> v;
    if (!locate<T>(args, first + i * blockDim.x, v)) {
      continue;
    }
    const int run = find_run(args, v.at);
    if (v.skip != 0 || args.begin[run + 1] - v.at < static_cast<Index>(kPerVector<T>) ||
        args.data[run] == nullptr) {
      slow |= 1u << i;
      continue;
    }
    to[i] = v.address;
    data[i] = args.data[run];
    element[i] = v.row * args.row_stride[run] + (v.at - args.begin[run]);
    dtype[i] = args.dtype[run];
    together = together && dtype[i] == dtype[0];
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    together = together && to[i] != nullptr;
  }
  if (together) {
    load_as(x, data, element, dtype[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (to[i] != nullptr) {
        T one[1][kPerVector<T>];
        load_as(one, {data[i]}, {element[i]}, dtype[i]);
        memcpy(x[i], one[0], sizeof(one));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (to[i] != nullptr) {
      uint4 bits;
      memcpy(&bits, x[i], sizeof(bits));
      *reinterpret_cast<uint4*>(to[i]) = bits;
    }
  }
#pragma unroll 1
  for (int i = 0; i < kVectors; ++i) {
    Vector<Index> v;
    if (slow >> i & 1 && locate<T>(args, first + i * blockDim.x, v)) {
      make_elements<T>(args, v);
    }
  }
}

// Grid: one thread for each `kVectors` vectors.
template <typename T, typename Args>
__global__ __launch_bounds__(kMaxThreads,
                             kMinBlocksPerSM) void cat_convert_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  make_vectors<T>(args);
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
    while (threads < kMaxThreads && vectors > kBlocksPerSM * p.gpu.multiprocessors * threads * kVectors) {
      threads *= 2;
    }
    const int64_t per_block = int64_t{threads} * kVectors;
    if (const cudaError_t error =
            sequence.launch(cat_convert_kernel<T, Args>, ceil_div(vectors, per_block), threads, args);
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

}  // namespace

cudaError_t launch_cat_convert(const CatRunsParams& params, LaunchSequence& sequence) {
  // A vector on a boundary is made one element after the other: a small result waits for nothing else.
  if (params.rows * params.row_size <= kCatSinglesPerSM * params.gpu.multiprocessors) {
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
