// Copies around a backward, as fast as memory.
#include "ops/rnn/training/copies.h"

#include "core/launch_sequence.h"
#include "core/math.h"
#include "device/division.cuh"
#include "device/sync.cuh"
#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 256;

struct Arguments {
  PreviousStates p;
  Divider<uint64_t> threads_of_row;
  Divider<uint64_t> batch;
  uint64_t threads;  // of a direction that have something to do
};

template <typename T, int kCount>
__global__ __launch_bounds__(kThreads) void previous_states_kernel(const __grid_constant__ Arguments args) {
  const PreviousStates& p = args.p;
  const uint64_t index = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index < args.threads) {
    const Quotient<uint64_t> in_row = args.threads_of_row(index);
    const Quotient<uint64_t> in_step = args.batch(in_row.quotient);
    const auto time = static_cast<int64_t>(in_step.quotient);
    const auto row = static_cast<int64_t>(in_step.remainder);
    const int64_t unit = static_cast<int64_t>(in_row.remainder) * kCount;
    const int64_t direction = blockIdx.y;
    const int64_t before = direction == 0 ? time - 1 : time + 1;
    const T* const from = before < 0 || before == p.steps
                              ? static_cast<const T*>(p.h0) + (direction * p.batch + row) * p.hidden + unit
                              : static_cast<const T*>(p.y) +
                                    ((before * p.batch + row) * p.directions + direction) * p.hidden + unit;
    T* const to = static_cast<T*>(p.to) + ((direction * p.steps + time) * p.batch + row) * p.hidden + unit;
    *reinterpret_cast<Pack<T, kCount>*>(to) = *reinterpret_cast<const Pack<T, kCount>*>(from);
  }
  wait_for_previous_launches();
}

template <typename T, int kCount>
cudaError_t launch_count(const PreviousStates& p, cudaStream_t stream) {
  const auto threads_of_row = static_cast<uint64_t>(p.hidden / kCount);
  const Arguments args{p, Divider<uint64_t>(threads_of_row), Divider<uint64_t>(p.batch),
                       static_cast<uint64_t>(p.steps * p.batch) * threads_of_row};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(args.threads, uint64_t{kThreads})),
                        static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute overlap = overlap_attribute();
  config.attrs = &overlap;
  config.numAttrs = p.overlaps ? 1 : 0;
  return cudaLaunchKernelEx(&config, previous_states_kernel<T, kCount>, args);
}

// Elements, kCount a thread.
template <typename From, typename To, int kCount>
__global__ __launch_bounds__(kThreads) void convert_kernel(const From* from, To* to, int64_t count) {
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kCount;
  if (first + kCount <= count) {
    float x[kCount];
    load_pack(x, from + first);
    store_pack(to + first, x);
  } else {
    for (int64_t i = first; i < count; ++i) {
      to[i] = from_op<To>(to_op(from[i]));
    }
  }
}

template <typename From, typename To>
cudaError_t launch_convert(const From* from, To* to, int64_t count, cudaStream_t stream) {
  const bool fours =
      bits_of(from) % (kMostUnits * sizeof(From)) == 0 && bits_of(to) % (kMostUnits * sizeof(To)) == 0;
  const int64_t of_thread = fours ? kMostUnits : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(ceil_div(count, of_thread), int64_t{kThreads})));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return fours ? cudaLaunchKernelEx(&config, convert_kernel<From, To, kMostUnits>, from, to, count)
               : cudaLaunchKernelEx(&config, convert_kernel<From, To, 1>, from, to, count);
}

}  // namespace

cudaError_t launch_previous_states(const PreviousStates& p, cudaStream_t stream) {
  return with_dtype(p.dtype, [&](auto t) {
    using T = decltype(t);
    return lies_in_fours(bits_of(p.y) | bits_of(p.h0) | bits_of(p.to), p.hidden, sizeof(T))
               ? launch_count<T, kMostUnits>(p, stream)
               : launch_count<T, 1>(p, stream);
  });
}

cudaError_t launch_round(const float* from, void* to, int64_t count, Dtype dtype, cudaStream_t stream) {
  return with_dtype(
      dtype, [&](auto t) { return launch_convert(from, static_cast<decltype(t)*>(to), count, stream); });
}

cudaError_t launch_widen(const void* from, float* to, int64_t count, Dtype dtype, cudaStream_t stream) {
  return with_dtype(dtype, [&](auto t) {
    return launch_convert(static_cast<const decltype(t)*>(from), to, count, stream);
  });
}

}  // namespace aten_ext::cuda
