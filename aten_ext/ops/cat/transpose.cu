// cat of inputs whose memory runs along another dimension than the result's: transposes, through tiles in
// shared memory.
//
//   out[..., begin_i + j, ...] = T(in_i[..., j, ...]), where neighbours along one dimension, k, lie side by
//   side in the result, and along another, t, in every input
//
// Shapes: after merging, at most kCatMaxDims dimensions with strides of their own (geometry.h); k is the
// last. Bytes an element: sizeof(its dtype) read, sizeof(T) written; memory is the limit.
//
// A block moves one tile of kEdge x kEdge elements: its warps read along t and write along k. Rows of the
// tile are padded by one element, so that a column's elements are in different banks. Elements of two bytes
// go in pairs: two words of two rows are two words of two columns (__byte_perm). Alternatives and timings:
// docs/kernels/cat.md.
#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/sync.cuh"
#include "ops/cat/convert.cuh"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// 16 elements a thread of 4 bytes or fewer; above, 4, so that tiles stay below 17 KB and 8 blocks fit on an
// SM.
template <typename T>
constexpr int kEdge = sizeof(T) <= 4 ? 64 : 32;
constexpr int kThreads = 256;
// All the threads that an SM holds, in 32 registers each. Conversions want more registers.
template <bool converts>
constexpr int kMinBlocksPerSM = converts ? 5 : 8;

// ---- arguments ---------------------------------------------------------------------------------------

template <int bytes>
struct TransposeArguments {
  static constexpr int kBytesPerInput = sizeof(void*) + 2 * sizeof(int64_t) + kCatMaxDims * sizeof(int64_t) +
                                        sizeof(Divider<uint32_t>) + sizeof(uint32_t) + sizeof(Dtype);
  static constexpr int kBytesPerDim = 2 * sizeof(int64_t) + sizeof(Divider<uint32_t>);
  static constexpr int kCapacity = (bytes - 64 - kCatMaxDims * kBytesPerDim) / kBytesPerInput;

  char* out;
  int32_t count, dims, dim, tile_dim;
  int64_t sizes[kCatMaxDims];
  int64_t out_strides[kCatMaxDims];
  Divider<uint32_t> steps[kCatMaxDims];  // tiles, or places, along each
  Dtype dtype[kCapacity];
  uint32_t first_block[kCapacity];
  Divider<uint32_t> steps_at_dim[kCapacity];
  const void* data[kCapacity];
  int64_t out_offset[kCapacity];
  int64_t size_at_dim[kCapacity];
  int64_t strides[kCapacity][kCatMaxDims];
};

// ---- kernel ------------------------------------------------------------------------------------------

// A tile: [0, rows) along k, [0, columns) along t.
struct Tile {
  int64_t in;  // of its first element
  int64_t out;
  int64_t in_stride;   // along k
  int64_t out_stride;  // along t
  int rows, columns;
  int input;
};

// The block's, all threads alike.
template <int edge, typename Args>
__device__ __forceinline__ Tile find_tile(const Args& args) {
  int low = 0;
  int high = args.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.first_block[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  Tile tile{0, args.out_offset[low], 0, 0, 0, 0, low};
  uint32_t rest = blockIdx.x - args.first_block[low];
  for (int d = args.dims - 1; d >= 0; --d) {
    const int64_t size = d == args.dim ? args.size_at_dim[low] : args.sizes[d];
    const bool is_k = d == args.dims - 1;
    const bool is_t = d == args.tile_dim;
    const auto [quotient, step] = (d == args.dim ? args.steps_at_dim[low] : args.steps[d])(rest);
    const int64_t at = static_cast<int64_t>(step) * (is_k || is_t ? edge : 1);
    rest = quotient;
    tile.in += at * args.strides[low][d];
    tile.out += at * args.out_strides[d];
    const int left = static_cast<int>(size - at < edge ? size - at : edge);
    if (is_k) {
      tile.rows = left;
      tile.in_stride = args.strides[low][d];
    } else if (is_t) {
      tile.columns = left;
      tile.out_stride = args.out_strides[d];
    }
  }
  return tile;
}

// Element by element.
template <typename T, bool converts, typename Args>
__device__ __forceinline__ void move_elements(const Args& args, const Tile& tile, T (*shared)[kEdge<T> + 1]) {
  constexpr int kWarps = kThreads / 32;
  constexpr int kAcross = kEdge<T> / 32;
  constexpr int kDown = kEdge<T> / kWarps;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  T x[kDown][kAcross];
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      const int row = warp + i * kWarps;
      const int column = lane + j * 32;
      if (row < tile.rows && column < tile.columns) {
        const int64_t at = tile.in + row * tile.in_stride + column;
        if constexpr (converts) {
          x[i][j] = load_one_as<T>(args.data[tile.input], at, args.dtype[tile.input]);
        } else {
          x[i][j] = static_cast<const T*>(args.data[tile.input])[at];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      const int row = warp + i * kWarps;
      const int column = lane + j * 32;
      if (row < tile.rows && column < tile.columns) {
        shared[row][column] = x[i][j];
      }
    }
  }
  __syncthreads();
  T* const out = reinterpret_cast<T*>(args.out) + tile.out;
#pragma unroll
  for (int i = 0; i < kDown; ++i) {
#pragma unroll
    for (int j = 0; j < kAcross; ++j) {
      const int row = lane + j * 32;
      const int column = warp + i * kWarps;
      if (row < tile.rows && column < tile.columns) {
        out[row + column * tile.out_stride] = shared[row][column];
      }
    }
  }
}

// Whether pairs of elements, of two bytes, lie at multiples of 4 in the whole of a full tile.
template <typename Args>
__device__ __forceinline__ bool has_pairs(const Args& args, const Tile& tile) {
  const auto in = reinterpret_cast<uintptr_t>(args.data[tile.input]) / 2 + static_cast<uintptr_t>(tile.in);
  const auto out = reinterpret_cast<uintptr_t>(args.out) / 2 + static_cast<uintptr_t>(tile.out);
  const auto strides = static_cast<uintptr_t>(tile.in_stride | tile.out_stride);
  return tile.rows == 64 && tile.columns == 64 && ((in | out | strides) & 1) == 0;
}

template <typename Args>
__device__ __forceinline__ void move_pairs(const Args& args, const Tile& tile, uint32_t (*shared)[33]) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const uint16_t* const in = static_cast<const uint16_t*>(args.data[tile.input]) + tile.in;
  uint32_t x[64 / kWarps];
#pragma unroll
  for (int i = 0; i < 64 / kWarps; ++i) {
    const int row = warp + i * kWarps;
    x[i] = *reinterpret_cast<const uint32_t*>(in + row * tile.in_stride + 2 * lane);
  }
#pragma unroll
  for (int i = 0; i < 64 / kWarps; ++i) {
    shared[warp + i * kWarps][lane] = x[i];
  }
  __syncthreads();
  uint16_t* const out = reinterpret_cast<uint16_t*>(args.out) + tile.out;
#pragma unroll
  for (int i = 0; i < 32 / (2 * kWarps); ++i) {
    const int word = 2 * (warp + i * kWarps) + lane / 16;  // columns 2 * word and the next
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * (lane % 16) + 32 * j;
      const uint32_t even = shared[row][word];
      const uint32_t odd = shared[row + 1][word];
      uint16_t* const to = out + row + 2 * word * tile.out_stride;
      *reinterpret_cast<uint32_t*>(to) = __byte_perm(even, odd, 0x5410);
      *reinterpret_cast<uint32_t*>(to + tile.out_stride) = __byte_perm(even, odd, 0x7632);
    }
  }
}

// Grid: one block for each tile of each input.
template <typename T, bool converts, typename Args>
__global__ __launch_bounds__(kThreads, kMinBlocksPerSM<converts>) void cat_transpose_kernel(
    const __grid_constant__ Args args) {
  launch_dependents();
  const Tile tile = find_tile<kEdge<T>>(args);
  if constexpr (sizeof(T) == 2 && !converts) {
    // Room for either way; elements are half words.
    __shared__ uint32_t shared[64][33];
    if (has_pairs(args, tile)) {
      move_pairs(args, tile, shared);
    } else {
      move_elements<T, false>(args, tile, reinterpret_cast<T(*)[kEdge<T> + 1]>(&shared[0][0]));
    }
  } else {
    __shared__ T shared[kEdge<T>][kEdge<T> + 1];
    move_elements<T, converts>(args, tile, shared);
  }
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

// Tiles, or places, along dimension `d`, which is `size` long.
template <typename T>
int64_t count_steps(const CatStridedParams& p, int d, int64_t size) {
  return d == p.dims - 1 || d == p.tile_dim ? ceil_div(size, int64_t{kEdge<T>}) : size;
}

// Where there are more than a grid has blocks, nothing is launched.
template <typename T>
Divider<uint32_t> step_divider(const CatStridedParams& p, int d, int64_t size) {
  return Divider<uint32_t>(static_cast<uint32_t>(
      std::min<int64_t>(count_steps<T>(p, d, size), std::numeric_limits<int32_t>::max())));
}

template <typename T>
int64_t count_tiles(const CatStridedParams& p, const CatStrided& input) {
  int64_t tiles = 1;
  for (int d = 0; d < p.dims; ++d) {
    tiles *= count_steps<T>(p, d, size_of(p, input, d));
  }
  return tiles;
}

template <typename T, bool converts, int bytes>
cudaError_t launch_list(const CatStridedParams& p, LaunchSequence& sequence) {
  using Args = TransposeArguments<bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(sizeof(Args) - sizeof(Args::strides) <= kIndexedArgumentBytes, "strides begin too late");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");

  Args args;
  args.out = static_cast<char*>(p.out);
  args.dims = p.dims;
  args.dim = p.dim;
  args.tile_dim = p.tile_dim;
  std::copy_n(p.sizes, p.dims, args.sizes);
  std::copy_n(p.out_strides, p.dims, args.out_strides);
  for (int d = 0; d < p.dims; ++d) {
    args.steps[d] = step_divider<T>(p, d, p.sizes[d]);
  }
  for (int64_t from = 0; from < p.count;) {
    int64_t blocks = 0;
    int count = 0;
    for (; count < Args::kCapacity && from + count < p.count; ++count) {
      const CatStrided& input = p.inputs[from + count];
      const int64_t tiles = count_tiles<T>(p, input);
      if (blocks + tiles > std::numeric_limits<int32_t>::max()) {
        break;
      }
      args.data[count] = input.data;
      args.out_offset[count] = input.out_offset;
      args.size_at_dim[count] = input.size_at_dim;
      std::copy_n(input.strides, p.dims, args.strides[count]);
      args.first_block[count] = static_cast<uint32_t>(blocks);
      args.steps_at_dim[count] = step_divider<T>(p, p.dim, input.size_at_dim);
      args.dtype[count] = input.dtype;
      blocks += tiles;
    }
    if (count == 0) {  // more tiles than a grid has blocks: more bytes than any GPU
      return cudaErrorInvalidValue;
    }
    args.count = count;
    if (const cudaError_t error =
            sequence.launch(cat_transpose_kernel<T, converts, Args>, blocks, kThreads, args);
        error != cudaSuccess) {
      return error;
    }
    from += count;
  }
  return cudaSuccess;
}

template <typename T, bool converts>
cudaError_t launch_type(const CatStridedParams& p, LaunchSequence& sequence) {
  if (p.count > TransposeArguments<kSmallArgumentBytes>::kCapacity &&
      p.gpu.argument_bytes >= kLargeArgumentBytes) {
    return launch_list<T, converts, kLargeArgumentBytes>(p, sequence);
  }
  return launch_list<T, converts, kSmallArgumentBytes>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_transpose(const CatStridedParams& params, LaunchSequence& sequence) {
  return with_element_type(
      params.dtype, params.element_size, params.converts,
      [&](auto tag, auto converts) { return launch_type<decltype(tag), converts>(params, sequence); },
      cudaErrorInvalidValue);
}

}  // namespace aten_ext::cuda
