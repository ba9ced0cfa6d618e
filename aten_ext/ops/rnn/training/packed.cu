// What a backward of a packed sequence adds to that of a padded one: copies, as fast as memory, a warp for
// each row of each time.
#include "ops/rnn/training/packed.h"

#include "ops/rnn/packed_place.cuh"
#include "ops/rnn/training/packs.cuh"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// ---- a gradient, padded ------------------------------------------------------------------------------

struct UnpackArguments {
  PackedRows rows;
  const void* packed;
  const void* at_end;
  void* padded;
  int64_t hidden;
  int directions;
};

template <typename T, int kCount>
__global__ __launch_bounds__(kPackedThreads) void unpack_kernel(const __grid_constant__ UnpackArguments a) {
  const int index = packed_warp();
  if (index >= a.rows.steps * a.rows.batch) {
    return;
  }
  for (int direction = 0; direction < a.directions; ++direction) {
    const PackedPlace place = place_of(a.rows, index / a.rows.batch, index % a.rows.batch, direction);
    const T* const from =
        place.exists && a.packed != nullptr
            ? static_cast<const T*>(a.packed) + (place.packed_row * a.directions + direction) * a.hidden
            : nullptr;
    const T* const at_end = place.exists && place.last && a.at_end != nullptr
                                ? static_cast<const T*>(a.at_end) +
                                      (static_cast<int64_t>(direction) * a.rows.batch + place.row) * a.hidden
                                : nullptr;
    T* const to =
        static_cast<T*>(a.padded) + (static_cast<int64_t>(index) * a.directions + direction) * a.hidden;
    for (int64_t i = int64_t{packed_lane()} * kCount; i < a.hidden; i += kPackedLanes * kCount) {
      float x[kCount] = {};
      float more[kCount] = {};
      if (from != nullptr) {
        load_pack(x, from + i);
      }
      if (at_end != nullptr) {
        load_pack(more, at_end + i);
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
          x[j] = from != nullptr ? x[j] + more[j] : more[j];
        }
      }
      store_pack(to + i, x);
    }
  }
}

// ---- rows, packed ------------------------------------------------------------------------------------

struct PackRowsArguments {
  PackedRows rows;
  const void* padded;
  void* packed;
  int64_t width;
  int direction;
};

template <typename T, int kCount>
__global__ __launch_bounds__(kPackedThreads) void pack_rows_kernel(
    const __grid_constant__ PackRowsArguments a) {
  const int index = packed_warp();
  if (index >= a.rows.steps * a.rows.batch) {
    return;
  }
  const PackedPlace place = place_of(a.rows, index / a.rows.batch, index % a.rows.batch, a.direction);
  if (!place.exists) {
    return;
  }
  const T* const from = static_cast<const T*>(a.padded) + index * a.width;
  T* const to = static_cast<T*>(a.packed) + place.packed_row * a.width;
  for (int64_t i = int64_t{packed_lane()} * kCount; i < a.width; i += kPackedLanes * kCount) {
    *reinterpret_cast<Pack<T, kCount>*>(to + i) = *reinterpret_cast<const Pack<T, kCount>*>(from + i);
  }
}

// ---- coefficients ------------------------------------------------------------------------------------

// Which coefficient multiplies the gradient of the state that is passed on; of an RNN none does.
int passing_of(Cell cell) {
  switch (cell) {
    case Cell::Gru:
      return GruBackwardSizes::kZ;
    case Cell::Lstm:
      return LstmBackwardSizes::kF;
    default:
      return -1;
  }
}

struct PassArguments {
  PackedRows rows;
  void* coefficients;
  int64_t first, steps;
  int64_t hidden;
  int count;    // coefficients of a unit
  int passing;  // which of them is 1; the others are 0
  int direction;
};

// T: float, or __half for what is saved in 16 bits: a zero has no bit in any dtype, and what is 1 is fp16.
template <typename T>
__global__ __launch_bounds__(kPackedThreads) void pass_kernel(const __grid_constant__ PassArguments a) {
  const int index = packed_warp();
  if (index >= a.steps * a.rows.batch) {
    return;
  }
  const int time = static_cast<int>(a.first) + index / a.rows.batch;
  if (place_of(a.rows, time, index % a.rows.batch, a.direction).exists) {
    return;
  }
  T* const of_row = static_cast<T*>(a.coefficients) + static_cast<int64_t>(index) * a.count * a.hidden;
  for (int coefficient = 0; coefficient < a.count; ++coefficient) {
    const T value = from_op<T>(coefficient == a.passing ? 1.0f : 0.0f);
    for (int64_t i = packed_lane(); i < a.hidden; i += kPackedLanes) {
      of_row[coefficient * a.hidden + i] = value;
    }
  }
}

int64_t warps_of(const PackedRows& rows) {
  return int64_t{rows.steps} * rows.batch;
}

}  // namespace

cudaError_t launch_unpack(const PackedRows& rows, const void* packed, const void* at_end, void* padded,
                          int64_t hidden, int directions, Dtype dtype, cudaStream_t stream) {
  const UnpackArguments arguments{rows, packed, at_end, padded, hidden, directions};
  return with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits_of(packed) | bits_of(at_end) | bits_of(padded), hidden, sizeof(T))
               ? launch_warps(unpack_kernel<T, kMostUnits>, arguments, warps_of(rows), stream)
               : launch_warps(unpack_kernel<T, 1>, arguments, warps_of(rows), stream);
  });
}

cudaError_t launch_pack_rows(const PackedRows& rows, const void* padded, void* packed, int64_t width,
                             Dtype dtype, int direction, cudaStream_t stream) {
  const PackRowsArguments arguments{rows, padded, packed, width, direction};
  return with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits_of(padded) | bits_of(packed), width, sizeof(T))
               ? launch_warps(pack_rows_kernel<T, kMostUnits>, arguments, warps_of(rows), stream)
               : launch_warps(pack_rows_kernel<T, 1>, arguments, warps_of(rows), stream);
  });
}

cudaError_t launch_pass_coefficients(const PackedRows& rows, void* coefficients, Dtype dtype, Cell cell,
                                     int64_t first, int64_t steps, int64_t hidden, int direction,
                                     cudaStream_t stream) {
  static_assert(GruBackwardSizes::kZ != GruBackwardSizes::kOfState &&
                LstmBackwardSizes::kF != LstmBackwardSizes::kOfState);
  const PassArguments arguments{
      rows, coefficients, first, steps, hidden, coefficients_of(cell), passing_of(cell), direction};
  return dtype == Dtype::Float ? launch_warps(pass_kernel<float>, arguments, steps * rows.batch, stream)
                               : launch_warps(pass_kernel<__half>, arguments, steps * rows.batch, stream);
}

}  // namespace aten_ext::cuda
