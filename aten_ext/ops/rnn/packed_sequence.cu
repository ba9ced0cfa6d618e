// A packed sequence padded, and back: a warp copies a row of one time. Bytes: each element is read and
// written once; the projections and the recurrence between are hundreds of times as much.
#include "ops/rnn/packed_sequence.h"

#include <algorithm>

#include "ops/rnn/packed_place.cuh"

namespace aten_ext::cuda {
namespace {

// Arguments of a launch may have 4 KB on every GPU and driver.
constexpr int kNumbers = 1000;

struct Numbers {
  int value[kNumbers];
  int count;
  int* to;
};

__global__ __launch_bounds__(kPackedThreads) void write_kernel(const __grid_constant__ Numbers numbers) {
  for (int i = static_cast<int>(threadIdx.x); i < numbers.count; i += kPackedThreads) {
    numbers.to[i] = numbers.value[i];
  }
}

template <typename Word>
struct PadArguments {
  PackedRows rows;
  const Word* x[2];
  Word* padded;
  int64_t x_row;  // this and what follows in words
  int64_t apart;
  int64_t features;
  int directions;
  PackedSteps of;
};

template <typename Word>
__global__ __launch_bounds__(kPackedThreads) void pad_kernel(const __grid_constant__ PadArguments<Word> a) {
  const PackedItem item = packed_item(a.directions, a.of);
  if (item.work == a.directions) {
    return;
  }
  const PackedPlace place = place_of(a.rows, a.of.first[item.work] + item.time, item.row, item.work);
  const Word* const from = place.exists ? a.x[item.work] + place.packed_row * a.x_row : nullptr;
  Word* const to = a.padded + item.work * a.apart + item.index * a.features;
  for (int64_t i = packed_lane(); i < a.features; i += kPackedLanes) {
    to[i] = place.exists ? from[i] : Word{};
  }
}

template <typename Word>
struct PackArguments {
  PackedRows rows;
  const Word* padded;
  Word* y;
  Word* hy;
  int64_t hidden;  // in words
  int directions;
  PackedSteps of;
};

template <typename Word>
__global__ __launch_bounds__(kPackedThreads) void pack_kernel(const __grid_constant__ PackArguments<Word> a) {
  const PackedItem item = packed_item(a.directions, a.of);
  if (item.work == a.directions) {
    return;
  }
  const int direction = item.work;
  const PackedPlace place = place_of(a.rows, a.of.first[direction] + item.time, item.row, direction);
  if (!place.exists) {
    return;
  }
  const Word* const from = a.padded + (item.index * a.directions + direction) * a.hidden;
  Word* const to = a.y + (place.packed_row * a.directions + direction) * a.hidden;
  Word* const state = a.hy + (static_cast<int64_t>(direction) * a.rows.batch + place.row) * a.hidden;
  for (int64_t i = packed_lane(); i < a.hidden; i += kPackedLanes) {
    const Word word = from[i];
    to[i] = word;
    if (place.last) {
      state[i] = word;
    }
  }
}

struct HoldArguments {
  PackedRows rows;
  HoldRows hold;
};

// An LSTM's gates, in its order.
constexpr int kGates = 4;
constexpr int kInputGate = 0;
constexpr int kForgetGate = 1;
// Beyond all that weights and states may add to it.
constexpr float kHeld = 1e30f;

__global__ __launch_bounds__(kPackedThreads) void hold_kernel(const __grid_constant__ HoldArguments a) {
  const HoldRows& hold = a.hold;
  const PackedItem item = packed_item(hold.directions, hold.of);
  if (item.work == hold.directions) {
    return;
  }
  if (place_of(a.rows, hold.of.first[item.work] + item.time, item.row, item.work).exists) {
    return;
  }
  float* const gates = hold.projection[item.work] + item.index * kGates * hold.hidden;
  for (int64_t i = packed_lane(); i < hold.hidden; i += kPackedLanes) {
    gates[kInputGate * hold.hidden + i] = -kHeld;
    gates[kForgetGate * hold.hidden + i] = kHeld;
  }
}

template <typename Word>
cudaError_t pad_words(const PackedRows& rows, const PadRows& pad, cudaStream_t stream) {
  const auto words = [&](int64_t elements) {
    return elements * pad.element_bytes / static_cast<int64_t>(sizeof(Word));
  };
  const PadArguments<Word> arguments{rows,
                                     {static_cast<const Word*>(pad.x[0]), static_cast<const Word*>(pad.x[1])},
                                     static_cast<Word*>(pad.padded),
                                     words(pad.x_row),
                                     words(pad.apart),
                                     words(pad.features),
                                     pad.directions,
                                     pad.of};
  return launch_warps(pad_kernel<Word>, arguments, warps_of(pad.of, pad.directions), stream);
}

template <typename Word>
cudaError_t pack_words(const PackedRows& rows, const PackOutput& pack, cudaStream_t stream) {
  const PackArguments<Word> arguments{rows,
                                      static_cast<const Word*>(pack.padded),
                                      static_cast<Word*>(pack.y),
                                      static_cast<Word*>(pack.hy),
                                      pack.hidden * pack.element_bytes / static_cast<int64_t>(sizeof(Word)),
                                      pack.directions,
                                      pack.of};
  return launch_warps(pack_kernel<Word>, arguments, warps_of(pack.of, pack.directions), stream);
}

// Whether all of these are multiples of a word.
template <typename Word, typename... Integers>
bool are_words(Integers... integers) {
  return ((static_cast<uint64_t>(integers) % sizeof(Word) == 0) && ...);
}

uint64_t address(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

}  // namespace

cudaError_t launch_write(const int* numbers, int64_t count, int* to, cudaStream_t stream) {
  for (int64_t first = 0; first < count; first += kNumbers) {
    Numbers part{};
    part.count = static_cast<int>(std::min<int64_t>(kNumbers, count - first));
    std::copy_n(numbers + first, part.count, part.value);
    part.to = to + first;
    if (const cudaError_t error = launch_warps(write_kernel, part, 1, stream); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t launch_pad(const PackedRows& rows, const PadRows& pad, cudaStream_t stream) {
  const int64_t bytes = pad.features * pad.element_bytes;
  const int64_t row_bytes = pad.x_row * pad.element_bytes;
  const int64_t apart_bytes = pad.apart * pad.element_bytes;
  const uint64_t second = pad.directions == 2 ? address(pad.x[1]) : 0;
  if (are_words<uint4>(bytes, row_bytes, apart_bytes, address(pad.x[0]), second, address(pad.padded))) {
    return pad_words<uint4>(rows, pad, stream);
  }
  if (are_words<uint32_t>(bytes, row_bytes, apart_bytes, address(pad.x[0]), second, address(pad.padded))) {
    return pad_words<uint32_t>(rows, pad, stream);
  }
  return pad_words<uint16_t>(rows, pad, stream);
}

cudaError_t launch_pack(const PackedRows& rows, const PackOutput& pack, cudaStream_t stream) {
  const int64_t bytes = pack.hidden * pack.element_bytes;
  if (are_words<uint4>(bytes, address(pack.padded), address(pack.y), address(pack.hy))) {
    return pack_words<uint4>(rows, pack, stream);
  }
  if (are_words<uint32_t>(bytes, address(pack.padded), address(pack.y), address(pack.hy))) {
    return pack_words<uint32_t>(rows, pack, stream);
  }
  return pack_words<uint16_t>(rows, pack, stream);
}

cudaError_t launch_hold(const PackedRows& rows, const HoldRows& hold, cudaStream_t stream) {
  return launch_warps(hold_kernel, HoldArguments{rows, hold}, warps_of(hold.of, hold.directions), stream);
}

}  // namespace aten_ext::cuda
