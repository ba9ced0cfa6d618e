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
  const Word* x;
  Word* padded;
  int64_t x_row;     // in words
  int64_t features;  // in words
  int direction;
};

template <typename Word>
__global__ __launch_bounds__(kPackedThreads) void pad_kernel(const __grid_constant__ PadArguments<Word> a) {
  const int index = packed_warp();
  if (index >= a.rows.steps * a.rows.batch) {
    return;
  }
  const PackedPlace place = place_of(a.rows, index / a.rows.batch, index % a.rows.batch, a.direction);
  const Word* const from = place.exists ? a.x + place.packed_row * a.x_row : nullptr;
  Word* const to = a.padded + index * a.features;
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
};

template <typename Word>
__global__ __launch_bounds__(kPackedThreads) void pack_kernel(const __grid_constant__ PackArguments<Word> a) {
  const int index = packed_warp();
  if (index >= a.rows.steps * a.rows.batch) {
    return;
  }
  for (int direction = 0; direction < a.directions; ++direction) {
    const PackedPlace place = place_of(a.rows, index / a.rows.batch, index % a.rows.batch, direction);
    if (!place.exists) {
      continue;
    }
    const Word* const from = a.padded + (static_cast<int64_t>(index) * a.directions + direction) * a.hidden;
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
}

struct HoldArguments {
  PackedRows rows;
  float* projection;
  int first;
  int steps;
  int64_t hidden;
  int direction;
};

// An LSTM's gates, in its order.
constexpr int kGates = 4;
constexpr int kInputGate = 0;
constexpr int kForgetGate = 1;
// Beyond all that weights and states may add to it.
constexpr float kHeld = 1e30f;

__global__ __launch_bounds__(kPackedThreads) void hold_kernel(const __grid_constant__ HoldArguments a) {
  const int index = packed_warp();
  if (index >= a.steps * a.rows.batch) {
    return;
  }
  const PackedPlace place =
      place_of(a.rows, a.first + index / a.rows.batch, index % a.rows.batch, a.direction);
  if (place.exists) {
    return;
  }
  float* const gates = a.projection + index * kGates * a.hidden;
  for (int64_t i = packed_lane(); i < a.hidden; i += kPackedLanes) {
    gates[kInputGate * a.hidden + i] = -kHeld;
    gates[kForgetGate * a.hidden + i] = kHeld;
  }
}

template <typename Word>
cudaError_t pad(const PackedRows& rows, const void* x, int64_t row_bytes, void* padded, int64_t bytes,
                int direction, cudaStream_t stream) {
  const PadArguments<Word> arguments{rows,
                                     static_cast<const Word*>(x),
                                     static_cast<Word*>(padded),
                                     row_bytes / static_cast<int64_t>(sizeof(Word)),
                                     bytes / static_cast<int64_t>(sizeof(Word)),
                                     direction};
  return launch_warps(pad_kernel<Word>, arguments, int64_t{rows.steps} * rows.batch, stream);
}

template <typename Word>
cudaError_t pack(const PackedRows& rows, const void* padded, void* y, void* hy, int64_t bytes, int directions,
                 cudaStream_t stream) {
  const PackArguments<Word> arguments{rows,
                                      static_cast<const Word*>(padded),
                                      static_cast<Word*>(y),
                                      static_cast<Word*>(hy),
                                      bytes / static_cast<int64_t>(sizeof(Word)),
                                      directions};
  return launch_warps(pack_kernel<Word>, arguments, int64_t{rows.steps} * rows.batch, stream);
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

cudaError_t launch_pad(const PackedRows& rows, const void* x, int64_t x_row, void* padded, int64_t features,
                       int element_bytes, int direction, cudaStream_t stream) {
  const int64_t bytes = features * element_bytes;
  const int64_t row_bytes = x_row * element_bytes;
  if (are_words<uint4>(bytes, row_bytes, address(x), address(padded))) {
    return pad<uint4>(rows, x, row_bytes, padded, bytes, direction, stream);
  }
  if (are_words<uint32_t>(bytes, row_bytes, address(x), address(padded))) {
    return pad<uint32_t>(rows, x, row_bytes, padded, bytes, direction, stream);
  }
  return pad<uint16_t>(rows, x, row_bytes, padded, bytes, direction, stream);
}

cudaError_t launch_pack(const PackedRows& rows, const void* padded, void* y, void* hy, int64_t hidden,
                        int directions, int element_bytes, cudaStream_t stream) {
  const int64_t bytes = hidden * element_bytes;
  if (are_words<uint4>(bytes, address(padded), address(y), address(hy))) {
    return pack<uint4>(rows, padded, y, hy, bytes, directions, stream);
  }
  if (are_words<uint32_t>(bytes, address(padded), address(y), address(hy))) {
    return pack<uint32_t>(rows, padded, y, hy, bytes, directions, stream);
  }
  return pack<uint16_t>(rows, padded, y, hy, bytes, directions, stream);
}

cudaError_t launch_hold(const PackedRows& rows, float* projection, int first, int steps, int64_t hidden,
                        int direction, cudaStream_t stream) {
  const HoldArguments arguments{rows, projection, first, steps, hidden, direction};
  return launch_warps(hold_kernel, arguments, int64_t{steps} * rows.batch, stream);
}

}  // namespace aten_ext::cuda
