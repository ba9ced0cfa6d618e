// cat of transposes with short rows: whole rows of the result, through panels in shared memory.
//
//   out[..., t, c] = in_i[..., t, c - begin_i], where neighbours along t lie side by side in every input, and
//   c goes through all that follows t in the result: through all inputs where they are joined there
//
// Shapes: after merging, at most kPanelDims dimensions with strides of their own (geometry.h). Bytes an
// element: its size read and written; memory is the limit.
//
// A block makes `rows` rows, which are one run of the result. Their columns are runs of the inputs. It copies
// them to shared memory in vectors, each where it begins within one, and then stores vectors of the result,
// element by element from there. Alternatives and timings: docs/kernels/cat.md.
#include "ops/cat/panels.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/async_copy.cuh"
#include "device/division.cuh"
#include "device/search.cuh"
#include "device/sync.cuh"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kThreads = 256;
constexpr int kMinBlocksPerSM = 8;
constexpr int kFewInputs = 4;

// ---- arguments ---------------------------------------------------------------------------------------

template <int inputs>
struct PanelArguments {
  static constexpr int kInputs = inputs;

  char* out;
  int32_t count, dims, dim, along;  // `along`: t
  bool joined;                      // in a dimension after t: a row holds all inputs
  uint32_t rows, columns;           // of a panel
  uint32_t column_bytes;
  Divider<uint32_t> of_row;     // columns
  Divider<uint32_t> of_column;  // vectors
  uint32_t sizes[kPanelDims];   // of `dim` the result's
  int64_t out_strides[kPanelDims];
  uint32_t first_block[inputs];  // where inputs are not joined
  uint32_t size_at_dim[inputs];
  int64_t begin[inputs];  // joined: along `dim`; otherwise of its first element in the result
  int64_t reach[inputs];  // from its first element in memory to the end of the last
  const void* data[inputs];
  int64_t strides[inputs][kPanelDims];
};

// ---- kernel ------------------------------------------------------------------------------------------

// The block's, all threads alike.
struct Panel {
  int64_t out;  // of its first element in the result
  uint32_t input;
  uint32_t from, rows;         // along t
  uint32_t index[kPanelDims];  // of the dimensions before t
};

template <typename Args>
__device__ __forceinline__ Panel find_panel(const Args& args) {
  Panel panel{};
  uint32_t rest = blockIdx.x;
  if (!args.joined) {
    panel.input = find_last_begin(args.first_block, rest, 0, args.count);
    panel.out = args.begin[panel.input];
    rest -= args.first_block[panel.input];
  }
  const auto size_of = [&](int d) { return d == args.dim ? args.size_at_dim[panel.input] : args.sizes[d]; };
  const uint32_t length = size_of(args.along);
  const uint32_t panels = (length + args.rows - 1) / args.rows;
  panel.from = rest % panels * args.rows;
  panel.rows = min(args.rows, length - panel.from);
  panel.out += panel.from * args.out_strides[args.along];
  rest /= panels;
#pragma unroll
  for (int d = kPanelDims - 2; d >= 0; --d) {
    if (d < args.along) {
      const uint32_t size = size_of(d);
      panel.index[d] = rest % size;
      panel.out += panel.index[d] * args.out_strides[d];
      rest /= size;
    }
  }
  return panel;
}

// Where a column begins in its input's memory, and whether vectors around its ends are all in there.
struct Column {
  const char* data;
  bool whole_begin, whole_end;
};

template <typename T, typename Args>
__device__ __forceinline__ Column find_column(const Args& args, const Panel& panel, uint32_t number) {
  uint32_t input = panel.input;
  uint32_t index[kPanelDims] = {};
#pragma unroll
  for (int d = kPanelDims - 1; d > 0; --d) {
    if (d > args.along && d < args.dims) {
      index[d] = number % args.sizes[d];
      number /= args.sizes[d];
      if (d == args.dim) {
        while (input + 1 < args.count && args.begin[input + 1] <= index[d]) {
          ++input;
        }
        index[d] -= static_cast<uint32_t>(args.begin[input]);
      }
    }
  }
  int64_t at = panel.from;
#pragma unroll
  for (int d = 0; d < kPanelDims; ++d) {
    if (d < args.dims && d != args.along) {
      at += (d < args.along ? panel.index[d] : index[d]) * args.strides[input][d];
    }
  }
  const T* const data = static_cast<const T*>(args.data[input]);
  const auto first = reinterpret_cast<uintptr_t>(data + at);
  const auto last = reinterpret_cast<uintptr_t>(data + at + panel.rows);
  return {reinterpret_cast<const char*>(data + at), first / 16 * 16 >= reinterpret_cast<uintptr_t>(data),
          (last + 15) / 16 * 16 <= reinterpret_cast<uintptr_t>(data + args.reach[input])};
}

// Grid: blocks of one input after those of the other, or of all where they are joined.
template <typename T, typename Args>
__global__ __launch_bounds__(kThreads,
                             kMinBlocksPerSM) void cat_panels_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  __shared__ uint4 vectors[kPanelBytes / 16];
  auto* const shared = reinterpret_cast<unsigned char*>(vectors);
  __shared__ Column columns[kMostColumns];
  __shared__ uint32_t begins[kMostColumns];  // of columns in `shared`
  const Panel panel = find_panel(args);
  for (uint32_t c = threadIdx.x; c < args.columns; c += kThreads) {
    columns[c] = find_column<T>(args, panel, c);
    begins[c] = place_of_column(c, args.column_bytes) +
                static_cast<uint32_t>(reinterpret_cast<uintptr_t>(columns[c].data) % 16);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < args.columns * args.of_column.divisor(); i += kThreads) {
    const auto [c, vector] = args.of_column(i);
    const Column column = columns[c];
    const char* const end = column.data + panel.rows * sizeof(T);
    const char* const from = column.data - reinterpret_cast<uintptr_t>(column.data) % 16 + vector * 16;
    unsigned char* const to = shared + place_of_column(c, args.column_bytes) + vector * 16;
    if ((vector == 0 && !column.whole_begin) || (from + 16 > end && !column.whole_end)) {
      for (uint32_t byte = 0; byte < 16; byte += sizeof(T)) {
        if (from + byte >= column.data && from + byte < end) {
          *reinterpret_cast<T*>(to + byte) = *reinterpret_cast<const T*>(from + byte);
        }
      }
    } else if (from < end) {
      copy_async_16(to, from);
    }
  }
  commit_async_copies();
  wait_async_copies<0>();
  __syncthreads();
  constexpr int kElements = 16 / sizeof(T);
  T* const out = reinterpret_cast<T*>(args.out) + panel.out;
  const auto phase = static_cast<int>(reinterpret_cast<uintptr_t>(out) % 16 / sizeof(T));
  const auto count = static_cast<int>(panel.rows * args.columns);
  for (int first = static_cast<int>(threadIdx.x) * kElements - phase; first < count;
       first += kThreads * kElements) {
    auto [row, column] = args.of_row(static_cast<uint32_t>(max(first, 0)));
    union {
      T elements[kElements];
      uint4 vector;
    } x;
    if (first >= 0 && first + kElements <= count) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        x.elements[i] = *reinterpret_cast<const T*>(shared + begins[column] + row * sizeof(T));
        ++column;
        const bool next = column == args.columns;
        column = next ? 0 : column;
        row += next;
      }
      *reinterpret_cast<uint4*>(out + first) = x.vector;
    } else {
      for (int i = max(first, 0); i < min(first + kElements, count); ++i) {
        out[i] = *reinterpret_cast<const T*>(shared + begins[column] + row * sizeof(T));
        ++column;
        const bool next = column == args.columns;
        column = next ? 0 : column;
        row += next;
      }
    }
  }
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

int64_t reach_of(const CatStridedParams& p, const CatStrided& input) {
  int64_t reach = 1;
  for (int d = 0; d < p.dims; ++d) {
    reach += (size_of(p, input, d) - 1) * input.strides[d];
  }
  return reach;
}

int64_t count_panels(const CatStridedParams& p, const CatStrided& input, int64_t rows) {
  int64_t panels = ceil_div(size_of(p, input, p.tile_dim), rows);
  for (int d = 0; d < p.tile_dim; ++d) {
    panels *= size_of(p, input, d);
  }
  return panels;
}

template <typename T, typename Args>
cudaError_t launch_list(const CatStridedParams& p, LaunchSequence& sequence) {
  static_assert(sizeof(Args) <= kSmallArgumentBytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  Args args{};
  args.out = static_cast<char*>(p.out);
  args.dims = p.dims;
  args.dim = p.dim;
  args.along = p.tile_dim;
  args.joined = p.dim > p.tile_dim;
  args.rows = static_cast<uint32_t>(p.column_bytes / static_cast<int64_t>(sizeof(T)));
  args.columns = static_cast<uint32_t>(p.out_strides[p.tile_dim]);
  args.column_bytes = static_cast<uint32_t>(p.column_bytes);
  args.of_row = Divider<uint32_t>(args.columns);
  args.of_column = Divider<uint32_t>(args.column_bytes / kPanelVector + 1);
  for (int d = 0; d < p.dims; ++d) {
    args.sizes[d] = static_cast<uint32_t>(p.sizes[d]);
    args.out_strides[d] = p.out_strides[d];
  }
  for (int64_t from = 0; from < p.count; from += args.count) {
    int64_t blocks = 0;
    for (args.count = 0; args.count < Args::kInputs && from + args.count < p.count; ++args.count) {
      const int i = args.count;
      const CatStrided& input = p.inputs[from + i];
      const int64_t more = count_panels(p, input, args.rows);
      if (blocks + more > std::numeric_limits<int32_t>::max()) {
        return cudaErrorInvalidValue;
      }
      args.first_block[i] = static_cast<uint32_t>(blocks);
      args.size_at_dim[i] = static_cast<uint32_t>(input.size_at_dim);
      args.begin[i] = args.joined ? input.out_offset / p.out_strides[p.dim] : input.out_offset;
      args.reach[i] = reach_of(p, input);
      args.data[i] = input.data;
      std::copy_n(input.strides, p.dims, args.strides[i]);
      blocks = args.joined ? more : blocks + more;
    }
    if (const cudaError_t error = sequence.launch(cat_panels_kernel<T, Args>, blocks, kThreads, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <typename T>
cudaError_t launch_type(const CatStridedParams& p, LaunchSequence& sequence) {
  return p.count <= kFewInputs ? launch_list<T, PanelArguments<kFewInputs>>(p, sequence)
                               : launch_list<T, PanelArguments<kPanelInputs>>(p, sequence);
}

}  // namespace

cudaError_t launch_cat_panels(const CatStridedParams& params, LaunchSequence& sequence) {
  switch (params.element_size) {
    case 1:
      return launch_type<uint8_t>(params, sequence);
    case 2:
      return launch_type<uint16_t>(params, sequence);
    case 4:
      return launch_type<uint32_t>(params, sequence);
    case 8:
      return launch_type<uint2>(params, sequence);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace aten_ext::cuda
