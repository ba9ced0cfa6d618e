// The gradients of one step's gates. Latency: a launch, one read from memory, a few multiplications.
#include "ops/rnn/training/step.h"

#include "core/math.h"
#include "device/division.cuh"
#include "ops/rnn/backward/coefficients.h"
#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 128;

// Gradients of a unit: `gates` those of W_hh h + b_hh, `of_input` of W_ih x + b_ih, `dh` comes in whole and
// leaves as what does not go through the product, `dc` is carried.
struct GruGradients : GruBackwardSizes {
  static constexpr bool kCarriesH = true;
  static constexpr bool kTwoArrays = true;
  static __device__ __forceinline__ void run(const float (&c)[kCoefficients], float& dh, float& /*dc*/,
                                             float (&gates)[kGates], float (&of_input)[kGates]) {
    gates[0] = of_input[0] = c[kReset] * dh;
    gates[1] = of_input[1] = c[kUpdate] * dh;
    of_input[2] = c[kNew] * dh;
    gates[2] = c[kR] * of_input[2];
    dh *= c[kZ];
  }
};

struct LstmGradients : LstmBackwardSizes {
  static constexpr bool kCarriesH = false;
  static constexpr bool kTwoArrays = false;
  static __device__ __forceinline__ void run(const float (&c)[kCoefficients], float& dh, float& dc,
                                             float (&gates)[kGates], float (& /*of_input*/)[kGates]) {
    dc = fmaf(c[kP], dh, dc);
    gates[0] = c[kInput] * dc;
    gates[1] = c[kForget] * dc;
    gates[2] = c[kCell] * dc;
    gates[3] = c[kOutput] * dh;
    dc *= c[kF];
  }
};

struct RnnGradients : RnnBackwardSizes {
  static constexpr bool kCarriesH = false;
  static constexpr bool kTwoArrays = false;
  static __device__ __forceinline__ void run(const float (&c)[kCoefficients], float& dh, float& /*dc*/,
                                             float (&gates)[kGates], float (& /*of_input*/)[kGates]) {
    gates[0] = c[0] * dh;
  }
};

struct Arguments {
  StepParams p;
  Divider<uint32_t> threads_of_row;
  uint32_t threads;  // of a direction that have something to do
};

// What has come to a state from later steps, or from outside behind the last.
template <int kCount, typename T>
__device__ __forceinline__ void load_carried(float (&to)[kCount], bool first, const void* outside,
                                             const float* carried, int64_t at) {
  if (!first) {
    load_pack(to, carried + at);
  } else if (outside != nullptr) {
    load_pack(to, static_cast<const T*>(outside) + at);
  }
}

// Each thread has kCount neighbouring units of one row.
template <typename Gradients, typename T, int kCount>
__global__ __launch_bounds__(kThreads) void step_kernel(const __grid_constant__ Arguments args) {
  constexpr int kGates = Gradients::kGates;
  constexpr int kCoefficients = Gradients::kCoefficients;
  const StepParams& p = args.p;
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= args.threads) {
    return;
  }
  const Quotient<uint32_t> place = args.threads_of_row(index);
  const int64_t row = place.quotient;
  const int64_t unit = static_cast<int64_t>(place.remainder) * kCount;
  const int64_t hidden = p.hidden;
  const int64_t at = row * hidden + unit;
  const StepDirection& d = p.direction[blockIdx.y];

  float c[kCoefficients][kCount];
#pragma unroll
  for (int i = 0; i < kCoefficients; ++i) {
    load_pack(c[i], d.coefficients + (row * kCoefficients + i) * hidden + unit);
  }
  float dh[kCount] = {};
  float dc[kCount] = {};
  load_carried<kCount, T>(dh, p.first, d.d_hy, d.dh, at);
  if constexpr (Gradients::kStates > 0) {
    load_carried<kCount, T>(dc, p.first, d.d_cy, d.dc, at);
  }
  if (d.dy != nullptr) {
    float dy[kCount];
    load_pack(dy, static_cast<const T*>(d.dy) + row * p.dy_row + unit);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      dh[k] += dy[k];
    }
  }
  float gates[kGates][kCount];
  float of_input[kGates][kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    float of_unit[kCoefficients];
    float hidden_gates[kGates];
    float input_gates[kGates] = {};
#pragma unroll
    for (int i = 0; i < kCoefficients; ++i) {
      of_unit[i] = c[i][k];
    }
    Gradients::run(of_unit, dh[k], dc[k], hidden_gates, input_gates);
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      gates[gate][k] = hidden_gates[gate];
      of_input[gate][k] = input_gates[gate];
    }
  }
#pragma unroll
  for (int gate = 0; gate < kGates; ++gate) {
    const int64_t to = (row * kGates + gate) * hidden + unit;
    store_pack(static_cast<T*>(d.d_hidden_gates) + to, gates[gate]);
    if constexpr (Gradients::kTwoArrays) {
      store_pack(static_cast<T*>(d.d_input_gates) + to, of_input[gate]);
    }
  }
  if constexpr (Gradients::kCarriesH) {
    store_pack(d.dh + at, dh);
  }
  if constexpr (Gradients::kStates > 0) {
    store_pack(d.dc + at, dc);
  }
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename Gradients, typename T, int kCount>
cudaError_t launch_count(const StepParams& p, cudaStream_t stream) {
  const auto threads_of_row = static_cast<uint32_t>(p.hidden / kCount);
  const Arguments args{p, Divider<uint32_t>(threads_of_row), static_cast<uint32_t>(p.batch) * threads_of_row};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ceil_div(args.threads, uint32_t{kThreads}), static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, step_kernel<Gradients, T, kCount>, args);
}

template <typename Gradients, typename T>
cudaError_t launch_dtype(const StepParams& p, cudaStream_t stream) {
  uintptr_t of_tensors = 0;
  uintptr_t of_fp32 = 0;
  for (int i = 0; i < p.directions; ++i) {
    const StepDirection& d = p.direction[i];
    of_tensors |= bits_of(d.dy) | bits_of(d.d_hidden_gates) | bits_of(d.d_input_gates);
    of_tensors |= p.first ? bits_of(d.d_hy) | bits_of(d.d_cy) : 0;
    of_fp32 |= bits_of(d.coefficients) | bits_of(d.dh) | bits_of(d.dc);
  }
  const bool fours = p.dy_row % kMostUnits == 0 && lies_in_fours(of_tensors, p.hidden, sizeof(T)) &&
                     lies_in_fours(of_fp32, p.hidden, sizeof(float));
  return fours ? launch_count<Gradients, T, kMostUnits>(p, stream) : launch_count<Gradients, T, 1>(p, stream);
}

template <typename Gradients>
cudaError_t launch_cell(const StepParams& p, cudaStream_t stream) {
  return with_dtype(p.dtype, [&](auto t) { return launch_dtype<Gradients, decltype(t)>(p, stream); });
}

}  // namespace

cudaError_t launch_step(const StepParams& p, cudaStream_t stream) {
  switch (p.cell) {
    case Cell::Gru:
      return launch_cell<GruGradients>(p, stream);
    case Cell::Lstm:
      return launch_cell<LstmGradients>(p, stream);
    case Cell::RnnTanh:
    case Cell::RnnRelu:
      return launch_cell<RnnGradients>(p, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace aten_ext::cuda
