// cat of inputs that are neither runs nor transposes: elements one by one, in the order of the result.
//
//   out[..., begin_i + j, ...] = T(in_i[..., j, ...])
//
// Shapes: after merging, at most kCatMaxDims dimensions with strides of their own (geometry.h); the last has
// stride 1 in the result. Bytes an element: sizeof(its dtype) read, or the whole sector of 32 bytes where its
// neighbours are elsewhere; sizeof(T) written. A thread moves kElements; neighbouring threads write
// neighbouring elements. A block belongs to one input. Alternatives and timings: docs/kernels/cat.md.
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

constexpr int kThreads = 256;
// Of a thread: with 64 warps an SM, 32 KB of fp32 under way.
constexpr int kElements = 4;
constexpr int kMinBlocksPerSM = 5;

// ---- arguments ---------------------------------------------------------------------------------------

template <typename Index_, int bytes>
struct Arguments {
  using Index = Index_;
  static constexpr int kBytesPerInput = sizeof(void*) + sizeof(int64_t) + sizeof(Index) +
                                        sizeof(Divider<Index>) + kCatMaxDims * sizeof(int64_t) +
                                        sizeof(uint32_t) + sizeof(Dtype);
  static constexpr int kOtherBytes = 64 + kCatMaxDims * (sizeof(Divider<Index>) + sizeof(int64_t));
  static constexpr int kCapacity = (bytes - kOtherBytes) / kBytesPerInput;

  char* out;
  int32_t count, dims, dim;
  Divider<Index> sizes[kCatMaxDims];
  int64_t out_strides[kCatMaxDims];
  const void* data[kCapacity];
  int64_t out_offset[kCapacity];
  int64_t strides[kCapacity][kCatMaxDims];
  Index numel[kCapacity];
  Divider<Index> size_at_dim[kCapacity];
  uint32_t first_block[kCapacity];
  Dtype dtype[kCapacity];
};

// ---- kernel ------------------------------------------------------------------------------------------

template <typename T, bool converts, typename Args>
__device__ __forceinline__ void move_elements(const Args& args) {
  using Index = typename Args::Index;
  int input = 0;
  for (int high = args.count; high - input > 1;) {
    const int middle = (input + high) / 2;
    if (args.first_block[middle] <= blockIdx.x) {
      input = middle;
    } else {
      high = middle;
    }
  }
  const Index first =
      static_cast<Index>(blockIdx.x - args.first_block[input]) * (kThreads * kElements) + threadIdx.x;
  T x[kElements];
  int64_t to[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    Index rest = first + i * kThreads;
    to[i] = -1;
    if (rest < args.numel[input]) {
      int64_t from = 0;
      to[i] = args.out_offset[input];
      for (int d = args.dims - 1; d > 0; --d) {
        const Divider<Index>& size = d == args.dim ? args.size_at_dim[input] : args.sizes[d];
        const auto [quotient, at] = size(rest);
        from += static_cast<int64_t>(at) * args.strides[input][d];
        to[i] += static_cast<int64_t>(at) * args.out_strides[d];
        rest = quotient;
      }
      from += static_cast<int64_t>(rest) * args.strides[input][0];
      to[i] += static_cast<int64_t>(rest) * args.out_strides[0];
      if constexpr (converts) {
        x[i] = load_one_as<T>(args.data[input], from, args.dtype[input]);
      } else {
        x[i] = static_cast<const T*>(args.data[input])[from];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (to[i] >= 0) {
      reinterpret_cast<T*>(args.out)[to[i]] = x[i];
    }
  }
}

// Grid: one block for each kThreads * kElements elements of each input.
template <typename T, bool converts, typename Args>
__global__ __launch_bounds__(kThreads,
                             kMinBlocksPerSM) void cat_gather_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  move_elements<T, converts>(args);
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

int64_t numel_of(const CatStridedParams& p, const CatStrided& input) {
  int64_t numel = 1;
  for (int d = 0; d < p.dims; ++d) {
    numel *= d == p.dim ? input.size_at_dim : p.sizes[d];
  }
  return numel;
}

template <typename T, bool converts, typename Args>
cudaError_t launch_list(const CatStridedParams& p, LaunchSequence& sequence) {
  using Index = typename Args::Index;
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  constexpr int64_t kPerBlock = int64_t{kThreads} * kElements;

  Args args;
  args.out = static_cast<char*>(p.out);
  args.dims = p.dims;
  args.dim = p.dim;
  for (int d = 0; d < p.dims; ++d) {
    args.sizes[d] = Divider<Index>(static_cast<Index>(d == p.dim ? 1 : p.sizes[d]));
    args.out_strides[d] = p.out_strides[d];
  }
  for (int64_t from = 0; from < p.count;) {
    int64_t blocks = 0;
    int count = 0;
    for (; count < Args::kCapacity && from + count < p.count; ++count) {
      const CatStrided& input = p.inputs[from + count];
      const int64_t numel = numel_of(p, input);
      const int64_t more = ceil_div(numel, kPerBlock);
      if (blocks + more > std::numeric_limits<int32_t>::max()) {
        break;
      }
      args.data[count] = input.data;
      args.out_offset[count] = input.out_offset;
      std::copy_n(input.strides, p.dims, args.strides[count]);
      args.numel[count] = static_cast<Index>(numel);
      args.size_at_dim[count] = Divider<Index>(static_cast<Index>(input.size_at_dim));
      args.first_block[count] = static_cast<uint32_t>(blocks);
      args.dtype[count] = input.dtype;
      blocks += more;
    }
    if (count == 0) {  // more elements than any GPU holds
      return cudaErrorInvalidValue;
    }
    args.count = count;
    if (const cudaError_t error =
            sequence.launch(cat_gather_kernel<T, converts, Args>, blocks, kThreads, args);
        error != cudaSuccess) {
      return error;
    }
    from += count;
  }
  return cudaSuccess;
}

template <typename T, bool converts>
cudaError_t launch_type(const CatStridedParams& p, LaunchSequence& sequence) {
  using Small = Arguments<uint32_t, kSmallArgumentBytes>;
  using Large = Arguments<uint32_t, kLargeArgumentBytes>;
  using Wide = Arguments<uint64_t, kSmallArgumentBytes>;
  static_assert(sizeof(Small) <= kSmallArgumentBytes && sizeof(Large) <= kLargeArgumentBytes &&
                    sizeof(Wide) <= kSmallArgumentBytes,
                "kernel arguments too large");
  const bool wide = std::any_of(p.inputs, p.inputs + p.count, [&p](const CatStrided& input) {
    // The last block's index goes beyond the end.
    return numel_of(p, input) > kCatIndexLimit - kThreads * kElements;
  });
  if (wide) {
    return launch_list<T, converts, Wide>(p, sequence);
  }
  if (p.count > Small::kCapacity && p.gpu.argument_bytes >= kLargeArgumentBytes) {
    return launch_list<T, converts, Large>(p, sequence);
  }
  return launch_list<T, converts, Small>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_gather(const CatStridedParams& params, LaunchSequence& sequence) {
  return with_element_type(
      params.dtype, params.element_size, params.converts,
      [&](auto tag, auto converts) { return launch_type<decltype(tag), converts>(params, sequence); },
      cudaErrorInvalidValue);
}

}  // namespace aten_ext::cuda
