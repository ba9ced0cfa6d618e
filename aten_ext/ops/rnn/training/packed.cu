// What a backward of a packed sequence adds to that of a padded one: copies, as fast as memory, a warp for
// each row of each time.
#include "ops/rnn/training/packed.h"

#include "device/sync.cuh"
#include "ops/rnn/packed_place.cuh"
#include "ops/rnn/training/packs.cuh"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// ---- a gradient, padded ------------------------------------------------------------------------------

struct UnpackArguments {
  PackedRows rows;
  PackedSteps of;
  UnpackRows unpack[kMostUnpacked];
  int count;
  int64_t hidden;
  int directions;
};

template <typename T, int kCount>
__global__ __launch_bounds__(kPackedThreads) void unpack_kernel(const __grid_constant__ UnpackArguments a) {
  const PackedItem item = packed_item(a.count * a.directions, a.of);
  if (item.work == a.count * a.directions) {
    return;
  }
  const UnpackRows& unpack = a.unpack[item.work / a.directions];
  const int direction = item.work % a.directions;
  const PackedPlace place = place_of(a.rows, a.of.first[direction] + item.time, item.row, direction);
  const T* const from =
      place.exists && unpack.packed != nullptr
          ? static_cast<const T*>(unpack.packed) + (place.packed_row * a.directions + direction) * a.hidden
          : nullptr;
  const T* const at_end = place.exists && place.last && unpack.at_end != nullptr
                              ? static_cast<const T*>(unpack.at_end) +
                                    (static_cast<int64_t>(direction) * a.rows.batch + place.row) * a.hidden
                              : nullptr;
  T* const to = static_cast<T*>(unpack.padded) + (item.index * a.directions + direction) * a.hidden;
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

// ---- rows, packed ------------------------------------------------------------------------------------

struct PackRowsArguments {
  PackedRows rows;
  PackedSteps of;
  PackRows pack[kMostPacked];
  int count;
};

template <typename T, int kCount>
__global__ __launch_bounds__(kPackedThreads) void pack_rows_kernel(
    const __grid_constant__ PackRowsArguments a) {
  const PackedItem item = packed_item(a.count, a.of);
  if (item.work == a.count) {
    return;
  }
  const PackRows& pack = a.pack[item.work];
  const PackedPlace place =
      place_of(a.rows, a.of.first[pack.direction] + item.time, item.row, pack.direction);
  if (!place.exists) {
    return;
  }
  const T* const from = static_cast<const T*>(pack.padded) + item.index * pack.padded_width;
  T* const to = static_cast<T*>(pack.packed) + place.packed_row * pack.width;
  for (int64_t i = int64_t{packed_lane()} * kCount; i < pack.width; i += kPackedLanes * kCount) {
    *reinterpret_cast<Pack<T, kCount>*>(to + i) = *reinterpret_cast<const Pack<T, kCount>*>(from + i);
  }
}

// ---- states before steps -----------------------------------------------------------------------------

struct PreviousArguments {
  PackedRows rows;
  PackedSteps of;
  PackedPreviousStates previous;
};

template <typename T, int kCount>
__device__ __forceinline__ void copy_previous(const PreviousArguments& a) {
  const PackedPreviousStates& p = a.previous;
  const PackedItem item = packed_item(p.directions, a.of);
  if (item.work == p.directions) {
    return;
  }
  const int direction = item.work;
  const PackedPlace place = place_of(a.rows, a.of.first[direction] + item.time, item.row, direction);
  if (!place.exists && !p.padded) {
    return;
  }
  const int before = direction == 0 ? place.time - 1 : place.time + 1;
  const T* from = nullptr;
  if (place.exists && before >= 0 && before < a.rows.length[place.row]) {
    const int64_t row = int64_t{a.rows.first_row[before]} + place.row;
    from = static_cast<const T*>(p.y) + (row * p.directions + direction) * p.hidden;
  } else if (place.exists) {
    from =
        static_cast<const T*>(p.h0) + (static_cast<int64_t>(direction) * a.rows.batch + place.row) * p.hidden;
  }
  T* const to = static_cast<T*>(p.to[direction]) + (p.padded ? item.index : place.packed_row) * p.hidden;
  for (int64_t i = int64_t{packed_lane()} * kCount; i < p.hidden; i += kPackedLanes * kCount) {
    *reinterpret_cast<Pack<T, kCount>*>(to + i) =
        from != nullptr ? *reinterpret_cast<const Pack<T, kCount>*>(from + i) : Pack<T, kCount>{};
  }
}

template <typename T, int kCount>
__global__ __launch_bounds__(kPackedThreads) void previous_kernel(
    const __grid_constant__ PreviousArguments a) {
  copy_previous<T, kCount>(a);
  wait_for_previous_launches();
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
  PassRows pass;
  int count;    // coefficients of a unit
  int passing;  // which of them is 1; the others are 0
};

// T: float, or __half for what is saved in 16 bits: a zero has no bit in any dtype, and what is 1 is fp16.
template <typename T>
__global__ __launch_bounds__(kPackedThreads) void pass_kernel(const __grid_constant__ PassArguments a) {
  const PassRows& pass = a.pass;
  const PackedItem item = packed_item(pass.directions, pass.of);
  if (item.work == pass.directions) {
    return;
  }
  if (place_of(a.rows, pass.of.first[item.work] + item.time, item.row, item.work).exists) {
    return;
  }
  T* const of_row = static_cast<T*>(pass.coefficients[item.work]) + item.index * a.count * pass.hidden;
  for (int coefficient = 0; coefficient < a.count; ++coefficient) {
    const T value = from_op<T>(coefficient == a.passing ? 1.0f : 0.0f);
    for (int64_t i = packed_lane(); i < pass.hidden; i += kPackedLanes) {
      of_row[coefficient * pass.hidden + i] = value;
    }
  }
}

}  // namespace

cudaError_t launch_unpack(const PackedRows& rows, const PackedSteps& of,
                          const UnpackRows (&unpack)[kMostUnpacked], int count, int64_t hidden,
                          int directions, Dtype dtype, cudaStream_t stream) {
  UnpackArguments arguments{rows, of, {}, count, hidden, directions};
  uintptr_t bits = 0;
  for (int i = 0; i < count; ++i) {
    arguments.unpack[i] = unpack[i];
    bits |= bits_of(unpack[i].packed) | bits_of(unpack[i].at_end) | bits_of(unpack[i].padded);
  }
  return with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits, hidden, sizeof(T))
               ? launch_warps(unpack_kernel<T, kMostUnits>, arguments, warps_of(of, count * directions),
                              stream)
               : launch_warps(unpack_kernel<T, 1>, arguments, warps_of(of, count * directions), stream);
  });
}

cudaError_t launch_pack_rows(const PackedRows& rows, const PackedSteps& of,
                             const PackRows (&pack)[kMostPacked], int count, Dtype dtype,
                             cudaStream_t stream) {
  PackRowsArguments arguments{rows, of, {}, count};
  uintptr_t bits = 0;
  int64_t widths = 0;  // as many low bits are 0 as in all of them
  for (int i = 0; i < count; ++i) {
    arguments.pack[i] = pack[i];
    bits |= bits_of(pack[i].padded) | bits_of(pack[i].packed);
    widths |= pack[i].width | pack[i].padded_width;
  }
  return with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits, widths, sizeof(T))
               ? launch_warps(pack_rows_kernel<T, kMostUnits>, arguments, warps_of(of, count), stream)
               : launch_warps(pack_rows_kernel<T, 1>, arguments, warps_of(of, count), stream);
  });
}

cudaError_t launch_packed_previous_states(const PackedRows& rows, const PackedSteps& of,
                                          const PackedPreviousStates& previous, Dtype dtype,
                                          cudaStream_t stream) {
  const PreviousArguments arguments{rows, of, previous};
  const int64_t warps = warps_of(of, previous.directions);
  const uintptr_t bits =
      bits_of(previous.y) | bits_of(previous.h0) | bits_of(previous.to[0]) | bits_of(previous.to[1]);
  return with_dtype(dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits, previous.hidden, sizeof(T))
               ? launch_warps(previous_kernel<T, kMostUnits>, arguments, warps, stream, previous.overlaps)
               : launch_warps(previous_kernel<T, 1>, arguments, warps, stream, previous.overlaps);
  });
}

cudaError_t launch_pass_coefficients(const PackedRows& rows, const PassRows& pass, Dtype dtype, Cell cell,
                                     cudaStream_t stream) {
  static_assert(GruBackwardSizes::kZ != GruBackwardSizes::kOfState &&
                LstmBackwardSizes::kF != LstmBackwardSizes::kOfState);
  const PassArguments arguments{rows, pass, coefficients_of(cell), passing_of(cell)};
  const int64_t warps = warps_of(pass.of, pass.directions);
  return dtype == Dtype::Float ? launch_warps(pass_kernel<float>, arguments, warps, stream)
                               : launch_warps(pass_kernel<__half>, arguments, warps, stream);
}

}  // namespace aten_ext::cuda
