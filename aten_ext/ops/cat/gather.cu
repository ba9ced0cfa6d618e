// cat of inputs of any strides, runs among them, in one launch.
//
//   out[r, begin_i + k] = T(in_i[r * segment_i + k])        0 <= r < rows, 0 <= k < segment_i
//
// Shapes: in_i is a row-major array of its own dimensions, at most kCatMaxDims after merging, which have any
// strides; the result is [rows, row_size]. A block belongs to one input, as in upstream's kernel: all of its
// threads read the same of the arguments, and blocks of many tiny inputs read theirs side by side.
//
// Bytes an element: sizeof(its dtype) read, or the whole sector of 32 bytes where its neighbours are
// elsewhere; sizeof(T) written. What a thread makes of an input, gather_ways.h says.
// Positions are 32 bits wherever the tensors allow it, and every division is a multiplication. Alternatives
// and timings: docs/kernels/cat.md.
#include "ops/cat/gather.cuh"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/sync.cuh"
#include "ops/cat/gather_ways.h"
#include "ops/cat/kernels.h"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kMaxThreads = 256;
// Inputs of a few elements waste the least of a block of one warp.
constexpr int kMinThreads = 32;
// Blocks shrink rather than leave most of the GPU idle.
constexpr int64_t kBlocksPerSM = 2;
template <typename Index>
constexpr int kMinBlocksPerSM = sizeof(Index) == 4 ? 6 : 4;
// So many blocks that have nothing to do are launched and end in less time than a search takes; or if there
// are eight times as many others. Of lines, which have little else to do, up to so many, and as many as
// others.
constexpr int64_t kIdleBlocks = 512;
constexpr int64_t kBusyBlocksOfIdle = 8;
constexpr int64_t kIdleBlocksOfLines = 2048;
// Most calls are to cost no more of a launch than they need.
constexpr int kFewArgumentBytes = 384;
constexpr int kTinyArgumentBytes = 768;
// Inputs that all differ in shape: about a hundred bytes each.
constexpr int kMediumArgumentBytes = 8192;

// ---- kernel ------------------------------------------------------------------------------------------

// Grid: blocks of one input after those of the other, each with threads for what it is made by.
template <typename T, bool converts, typename Args>
__global__ __launch_bounds__(kMaxThreads, kMinBlocksPerSM<typename Args::Index>) void cat_gather_kernel(
    const __grid_constant__ Args args) {
  launch_dependents();
  const auto [input, block, exists] = find_input(args);
  if (exists) {
    if constexpr (converts) {
      move_elements<T, true, kElements<T, true>>(args, input, block);
    } else {
      make_part<T>(args, input, block);
    }
  }
  wait_for_previous_launches();
}

// The same of a small result: each thread moves one element.
template <typename T, bool converts, typename Args>
__global__ __launch_bounds__(kMaxThreads) void cat_gather_single_kernel(const __grid_constant__ Args args) {
  launch_dependents();
  const auto [input, block, exists] = find_input(args);
  if (exists) {
    move_elements<T, converts, 1>(args, input, block);
  }
  wait_for_previous_launches();
}

// ---- launch ------------------------------------------------------------------------------------------

// What follows from an input and its place in the result. The host finds it out once for each input.
struct Described {
  int64_t items;
  int64_t packs;    // or strips
  int64_t threads;  // that they are worth
  GatherWay way;
  int along;       // of patches
  bool own_shape;  // not the one before's
};

// The most packs, of `bytes` each, that any segment of an input touches: where rows differ in phase, one more
// than its bytes fill.
int64_t packs_of(const CatGatherParams& p, const CatGatherInput& input, int64_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(p.out) + input.begin * p.element_size;
  const bool in_step = p.rows == 1 || p.row_size * p.element_size % bytes == 0;
  const int64_t phase = in_step ? static_cast<int64_t>(first) & (bytes - 1) : bytes - p.element_size;
  return ceil_div(phase + input.segment * p.element_size, bytes);
}

// Whether one shape describes both, as far as the inputs themselves go.
bool are_alike(const CatGatherInput& a, const CatGatherInput& b) {
  return a.segment == b.segment && a.dims == b.dims && std::equal(a.sizes, a.sizes + a.dims, b.sizes) &&
         std::equal(a.strides, a.strides + a.dims, b.strides);
}

bool is_in_packs(GatherWay way) {
  return way == GatherWay::Packs || way == GatherWay::Fill;
}

template <typename T, bool converts>
int64_t items_of_thread(GatherWay way) {
  switch (way) {
    case GatherWay::Packs:
    case GatherWay::Patches:
      return 1;
    case GatherWay::Fill:
      return kFilled;
    case GatherWay::Strips:
      return kStrips;
    case GatherWay::Line:
      return kElementsOfLine<T>;
    case GatherWay::Single:
      return 1;
    default:
      return kElements<T, converts>;
  }
}

template <typename T, bool converts>
std::vector<Described> describe(const CatGatherParams& p, bool single) {
  std::vector<Described> all(static_cast<size_t>(p.count));
  for (int64_t i = 0; i < p.count; ++i) {
    const CatGatherInput& input = p.inputs[i];
    Described& one = all[i];
    const bool alike = i > 0 && are_alike(input, p.inputs[i - 1]);
    const GatherChoice choice = choose_way(p, input, single);
    one.way = choice.way;
    one.along = choice.along;
    const bool strips = one.way == GatherWay::Strips;
    one.packs = packs_of(p, input, strips ? kStrip * p.element_size : 16);
    one.items = p.rows * (strips || is_in_packs(one.way) ? one.packs : input.segment);
    if (one.way == GatherWay::Patches) {
      const int64_t size = input.sizes[one.along];
      one.items = one.items / size * ceil_div(size, int64_t{16} / p.element_size);
    }
    one.threads = ceil_div(one.items, items_of_thread<T, converts>(one.way));
    // Packs depend on the place in the result too.
    one.own_shape = !alike || one.way != all[i - 1].way || one.items != all[i - 1].items;
  }
  return all;
}

// From the first element in memory to the end of the last.
int64_t reach_of(const CatGatherInput& input) {
  int64_t reach = 1;
  for (int d = 0; d < input.dims; ++d) {
    reach += (input.sizes[d] - 1) * input.strides[d];
  }
  return reach;
}

template <typename Index>
constexpr int record_bytes(int dims) {
  return static_cast<int>(sizeof(GatherShape<Index>)) + dims * static_cast<int>(sizeof(GatherDim<Index>));
}

template <typename Index>
void write_record(unsigned char* to, const CatGatherInput& input, const Described& described,
                  int element_size) {
  GatherShape<Index> shape{};
  shape.segment = Divider<Index>(static_cast<Index>(input.segment));
  if (is_in_packs(described.way) || described.way == GatherWay::Strips) {
    shape.packs = Divider<Index>(static_cast<Index>(described.packs));
  }
  shape.items = static_cast<Index>(described.items);
  shape.reach = static_cast<Index>(reach_of(input));
  shape.dims = static_cast<uint32_t>(input.dims);
  shape.way = described.way;
  shape.along = static_cast<uint8_t>(described.along);
  const bool patches = described.way == GatherWay::Patches;
  if (patches) {
    shape.packs = Divider<Index>(static_cast<Index>(input.sizes[described.along]));
  }
  std::memcpy(to, &shape, sizeof(shape));
  for (int d = 0; d < input.dims; ++d) {
    const int64_t unit = patches && d == described.along ? 16 / element_size : 1;
    const GatherDim<Index> dim{Divider<Index>(static_cast<Index>(ceil_div(input.sizes[d], unit))),
                               static_cast<Index>(input.strides[d] * unit)};
    std::memcpy(to + record_bytes<Index>(d), &dim, sizeof(dim));
  }
}

// Describes inputs from number `from` on, as many as the arguments hold; returns the blocks that they take.
template <typename Args>
int64_t fill_arguments(Args& args, const CatGatherParams& p, const std::vector<Described>& described,
                       int64_t from, int threads, bool in_turns) {
  using Index = typename Args::Index;
  int record = 0;
  int next_record = 0;
  int64_t blocks = 0;
  int64_t most = 0;
  bool lines = true;
  args.count = 0;
  for (; args.count < Args::kInputs && from + args.count < p.count; ++args.count) {
    const int i = args.count;
    const CatGatherInput& input = p.inputs[from + i];
    const Described& one = described[from + i];
    if (i == 0 || one.own_shape) {
      record = next_record;
      next_record += record_bytes<Index>(input.dims);
      if (next_record > Args::kRecordBytes) {
        break;
      }
      write_record<Index>(args.records + record, input, one, p.element_size);
    }
    const int64_t more = ceil_div(one.threads, int64_t{threads});
    if (blocks + more > std::numeric_limits<int32_t>::max() / 2) {
      break;
    }
    args.data[i] = input.data;
    args.begin[i] = static_cast<Index>(input.begin);
    args.first_block[i] = static_cast<uint32_t>(blocks);
    args.shape[i] = static_cast<uint16_t>(record / 4);
    args.dtype[i] = input.dtype;
    blocks += more;
    most = std::max(most, more);
    lines = lines && one.way == GatherWay::Line;
  }
  constexpr int64_t kMostBlocks = std::numeric_limits<int32_t>::max();
  args.in_turns = in_turns && most * args.count <= std::min(kMostTurns * blocks, kMostBlocks);
  // A division finds the input sooner than a search. A few blocks that have nothing to do cost less.
  const int64_t of_lines = lines ? std::min(kIdleBlocksOfLines, blocks) : 0;
  const int64_t idle = std::max({kIdleBlocks, blocks / kBusyBlocksOfIdle, of_lines});
  args.equal_blocks = args.in_turns || most * args.count - blocks <= idle;
  args.equal_shapes = record == 0;
  for (int i = 0; args.in_turns && i < args.count; ++i) {
    args.first_block[i] = turn_share(ceil_div(described[from + i].threads, int64_t{threads}), most);
  }
  args.blocks =
      Divider<uint32_t>(static_cast<uint32_t>(args.in_turns ? args.count : std::max<int64_t>(most, 1)));
  return args.equal_blocks ? most * args.count : blocks;
}

template <typename T, bool converts, typename Args>
cudaError_t launch_list(const CatGatherParams& p, const std::vector<Described>& described, bool single,
                        int threads, LaunchSequence& sequence) {
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  Args args;
  args.out = static_cast<char*>(p.out);
  args.row_size = static_cast<typename Args::Index>(p.row_size);
  const bool in_turns = take_turns(p);
  const auto kernel =
      single ? cat_gather_single_kernel<T, converts, Args> : cat_gather_kernel<T, converts, Args>;
  for (int64_t from = 0; from < p.count; from += args.count) {
    const int64_t blocks = fill_arguments(args, p, described, from, threads, in_turns);
    if (args.count == 0) {  // more elements than any GPU holds
      return cudaErrorInvalidValue;
    }
    if (const cudaError_t error = sequence.launch(kernel, blocks, threads, args); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

// What decides about the size of the arguments and of the blocks.
struct Total {
  int64_t record_bytes = 0;
  int64_t threads = 0;
  bool wide = false;
};

Total total_of(const CatGatherParams& p, const std::vector<Described>& described) {
  // The last block's index goes beyond the end.
  constexpr int64_t kLimit = kCatIndexLimit - int64_t{kMaxThreads} * kElementsOfLine<uint8_t>;
  Total total;
  total.wide = p.rows * p.row_size > kLimit;
  for (int64_t i = 0; i < p.count; ++i) {
    const Described& one = described[i];
    total.threads += one.threads;
    if (one.own_shape) {
      total.wide = total.wide || one.items > kLimit || reach_of(p.inputs[i]) > kLimit;
      total.record_bytes += record_bytes<uint32_t>(p.inputs[i].dims);
    }
  }
  return total;
}

template <typename T, bool converts>
cudaError_t launch_type(const CatGatherParams& p, LaunchSequence& sequence) {
  using Few = GatherArguments<uint32_t, 4, kFewArgumentBytes>;
  using Tiny = GatherArguments<uint32_t, 16, kTinyArgumentBytes>;
  using Small = GatherArguments<uint32_t, 128, kSmallArgumentBytes>;
  using Medium = GatherArguments<uint32_t, 128, kMediumArgumentBytes>;
  using Large = GatherArguments<uint32_t, 1000, kLargeArgumentBytes>;
  using Wide = GatherArguments<uint64_t, 48, kSmallArgumentBytes>;
  static_assert(sizeof(Few) <= kFewArgumentBytes && sizeof(Tiny) <= kTinyArgumentBytes &&
                    sizeof(Small) <= kSmallArgumentBytes && sizeof(Medium) <= kMediumArgumentBytes &&
                    sizeof(Large) <= kLargeArgumentBytes && sizeof(Wide) <= kSmallArgumentBytes,
                "kernel arguments too large");
  static_assert(record_bytes<uint32_t>(kCatMaxDims) <= Tiny::kRecordBytes, "no room for any input");
  const bool single = is_single(p);
  const std::vector<Described> described = describe<T, converts>(p, single);
  const Total total = total_of(p, described);
  int threads = kMinThreads;
  while (threads < kMaxThreads && total.threads > kBlocksPerSM * p.gpu.multiprocessors * threads) {
    threads *= 2;
  }
  const auto fits = [&]<typename Args>(const Args*) {
    return p.count <= Args::kInputs && total.record_bytes <= Args::kRecordBytes;
  };
  if (total.wide) {
    return launch_list<T, converts, Wide>(p, described, single, threads, sequence);
  }
  if constexpr (!converts) {
    if (fits(static_cast<const Few*>(nullptr))) {
      return launch_list<T, converts, Few>(p, described, single, threads, sequence);
    }
    if (fits(static_cast<const Tiny*>(nullptr))) {
      return launch_list<T, converts, Tiny>(p, described, single, threads, sequence);
    }
  }
  if (fits(static_cast<const Small*>(nullptr)) || p.gpu.argument_bytes < kLargeArgumentBytes) {
    return launch_list<T, converts, Small>(p, described, single, threads, sequence);
  }
  if constexpr (!converts) {
    if (fits(static_cast<const Medium*>(nullptr))) {
      return launch_list<T, converts, Medium>(p, described, single, threads, sequence);
    }
  }
  return launch_list<T, converts, Large>(p, described, single, threads, sequence);
}

}  // namespace

cudaError_t launch_cat_gather(const CatGatherParams& params, LaunchSequence& sequence) {
  return with_element_type(
      params.dtype, params.element_size, params.converts,
      [&](auto tag, auto converts) { return launch_type<decltype(tag), converts>(params, sequence); },
      cudaErrorInvalidValue);
}

cudaError_t launch_cat_gather(const CatRunsParams& p, bool converts, LaunchSequence& sequence) {
  std::vector<CatGatherInput> inputs;
  inputs.reserve(static_cast<size_t>(p.count));
  for (int64_t i = 0; i < p.count; ++i) {
    const CatRun& run = p.runs[i];
    if (run.data != nullptr) {
      const bool one = p.rows == 1 || run.row_stride == run.size;
      inputs.push_back({run.data,
                        run.begin,
                        run.size,
                        one ? 1 : 2,
                        {one ? p.rows * run.size : p.rows, run.size},
                        {one ? 1 : run.row_stride, 1},
                        run.dtype});
    }
  }
  return launch_cat_gather({inputs.data(), static_cast<int64_t>(inputs.size()), p.out, p.rows, p.row_size,
                            p.element_size, p.dtype, converts, p.gpu},
                           sequence);
}

}  // namespace aten_ext::cuda
