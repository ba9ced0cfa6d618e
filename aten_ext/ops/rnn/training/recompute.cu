// The coefficients of a layer's gradients from the products of its gates.
//
// Memory-bound: a unit of a GRU reads 6 gates and a state and writes 5 coefficients, 44 bytes and the state.
// The host makes the products of as many rows at a time as the L2 holds. The scan of an LSTM is bound by
// latency where rows are few: a thread has loaded the next steps before it needs them.
#include "ops/rnn/training/recompute.h"

#include "core/math.h"
#include "device/division.cuh"
#include "ops/rnn/activations.cuh"
#include "ops/rnn/backward/make_coefficients.cuh"
#include "ops/rnn/training/packs.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kScanThreads = 32;  // few rows should reach many SMs
constexpr int kScanAhead = 4;     // steps that a thread has loaded

// ---- cells -------------------------------------------------------------------------------------------

// What a thread knows of one direction.
struct Place {
  RecomputeDirection direction;
  int64_t row, unit, hidden, h_row;
};

template <int kCount, typename T>
__device__ __forceinline__ void add_bias(float (&to)[kCount], const void* bias, int64_t at) {
  if (bias != nullptr) {
    float b[kCount];
    load_pack(b, static_cast<const T*>(bias) + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      to[k] += b[k];
    }
  }
}

struct GruRecompute : GruBackwardSizes {
  template <typename T, int kCount>
  static __device__ __forceinline__ void run(const Place& p, float (&c)[kCoefficients][kCount]) {
    float i[kGates][kCount];
    float h[kGates][kCount];
    float before[kCount];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const int64_t column = gate * p.hidden + p.unit;
      const int64_t at = p.row * kGates * p.hidden + column;
      load_pack(i[gate], p.direction.input_gates + at);
      load_pack(h[gate], p.direction.hidden_gates + at);
      add_bias<kCount, T>(i[gate], p.direction.b_ih, column);
      add_bias<kCount, T>(h[gate], p.direction.b_hh, column);
    }
    load_pack(before, static_cast<const T*>(p.direction.h) + p.row * p.h_row + p.unit);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float r = accurate_sigmoid(i[0][k] + h[0][k]);
      const float z = accurate_sigmoid(i[1][k] + h[1][k]);
      const float n = tanhf(fmaf(r, h[2][k], i[2][k]));
      float of_unit[kCoefficients];
      make_coefficients(of_unit, r, z, n, h[2][k], before[k]);
#pragma unroll
      for (int coefficient = 0; coefficient < kCoefficients; ++coefficient) {
        c[coefficient][k] = of_unit[coefficient];
      }
    }
  }
};

// The scan reads i * g in the place of p and o in that of A_o.
struct LstmRecompute : LstmBackwardSizes {
  template <typename T, int kCount>
  static __device__ __forceinline__ void run(const Place& p, float (&c)[kCoefficients][kCount]) {
    float x[kGates][kCount];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      const int64_t column = gate * p.hidden + p.unit;
      load_pack(x[gate], p.direction.input_gates + p.row * kGates * p.hidden + column);
      add_bias<kCount, T>(x[gate], p.direction.b_ih, column);
      add_bias<kCount, T>(x[gate], p.direction.b_hh, column);
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float i = accurate_sigmoid(x[0][k]);
      const float f = accurate_sigmoid(x[1][k]);
      const float g = tanhf(x[2][k]);
      c[kP][k] = i * g;
      c[kInput][k] = g * (i * (1.0f - i));
      c[kForget][k] = 0.0f;
      c[kCell][k] = i * fmaf(-g, g, 1.0f);
      c[kOutput][k] = accurate_sigmoid(x[3][k]);
      c[kF][k] = f;
    }
  }
};

// By the state behind the step alone.
template <bool kRelu>
struct RnnRecompute : RnnBackwardSizes {
  template <typename T, int kCount>
  static __device__ __forceinline__ void run(const Place& p, float (&c)[kCoefficients][kCount]) {
    float h[kCount];
    load_pack(h, static_cast<const T*>(p.direction.h) + p.row * p.h_row + p.unit);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      c[0][k] = kRelu ? (h[k] > 0.0f ? 1.0f : 0.0f) : fmaf(-h[k], h[k], 1.0f);
    }
  }
};

// ---- kernels -----------------------------------------------------------------------------------------

struct Arguments {
  RecomputeParams p;
  Divider<uint64_t> threads_of_row;
  uint64_t threads;  // of a direction that have something to do
};

// Each thread has kCount neighbouring units of one row.
template <typename Cell, typename T, int kCount>
__global__ __launch_bounds__(kThreads) void recompute_kernel(const __grid_constant__ Arguments args) {
  const uint64_t index = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.threads) {
    return;
  }
  const Quotient<uint64_t> quotient = args.threads_of_row(index);
  const Place place{args.p.direction[blockIdx.y], static_cast<int64_t>(quotient.quotient),
                    static_cast<int64_t>(quotient.remainder) * kCount, args.p.hidden, args.p.h_row};
  float c[Cell::kCoefficients][kCount];
  Cell::template run<T, kCount>(place, c);
  float* const to =
      place.direction.coefficients + place.row * Cell::kCoefficients * place.hidden + place.unit;
#pragma unroll
  for (int i = 0; i < Cell::kCoefficients; ++i) {
    store_pack(to + i * place.hidden, c[i]);
  }
}

// What the scan reads of a step.
struct Scanned {
  float added, f, o;
};

template <typename T>
__global__ __launch_bounds__(kScanThreads) void scan_kernel(const __grid_constant__ ScanParams p) {
  using Sizes = LstmBackwardSizes;
  const int64_t index = int64_t{blockIdx.x} * kScanThreads + threadIdx.x;
  if (index >= p.batch * p.hidden) {
    return;
  }
  const ScanDirection& d = p.direction[blockIdx.y];
  const int64_t row = index / p.hidden;
  const int64_t unit = index - row * p.hidden;
  const int64_t step = p.batch * Sizes::kCoefficients * p.hidden;
  const int64_t advance = blockIdx.y == 0 ? step : -step;
  float* at = d.coefficients + (blockIdx.y == 0 ? 0 : (p.steps - 1) * step) +
              row * Sizes::kCoefficients * p.hidden + unit;
  float c = d.c0 != nullptr        ? to_op(static_cast<const T*>(d.c0)[index])
            : d.c0_fp32 != nullptr ? d.c0_fp32[index]
                                   : 0.0f;
  const auto load = [&](int64_t s, const float* from) {
    return s < p.steps ? Scanned{from[Sizes::kP * p.hidden], from[Sizes::kF * p.hidden],
                                 from[Sizes::kOutput * p.hidden]}
                       : Scanned{};
  };
  Scanned next[kScanAhead];
#pragma unroll
  for (int i = 0; i < kScanAhead; ++i) {
    next[i] = load(i, at + i * advance);
  }
  for (int64_t first = 0; first < p.steps; first += kScanAhead) {
    Scanned now[kScanAhead];
#pragma unroll
    for (int i = 0; i < kScanAhead; ++i) {
      now[i] = next[i];
      next[i] = load(first + kScanAhead + i, at + (kScanAhead + i) * advance);
    }
#pragma unroll
    for (int i = 0; i < kScanAhead; ++i) {
      if (first + i < p.steps) {
        const auto [added, f, o] = now[i];
        const float before = c;
        c = fmaf(f, c, added);
        if (d.c_end == nullptr) {
          const float squashed = tanhf(c);
          float* const to = at + i * advance;
          to[Sizes::kP * p.hidden] = o * fmaf(-squashed, squashed, 1.0f);
          to[Sizes::kForget * p.hidden] = before * (f * (1.0f - f));
          to[Sizes::kOutput * p.hidden] = squashed * (o * (1.0f - o));
        }
      }
    }
    at += kScanAhead * advance;
  }
  if (d.c_end != nullptr) {
    d.c_end[index] = c;
  }
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename Cell, typename T, int kCount>
cudaError_t launch_count(const RecomputeParams& p, cudaStream_t stream) {
  const auto threads_of_row = static_cast<uint64_t>(p.hidden / kCount);
  const Arguments args{p, Divider<uint64_t>(threads_of_row), static_cast<uint64_t>(p.rows) * threads_of_row};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(args.threads, uint64_t{kThreads})),
                        static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, recompute_kernel<Cell, T, kCount>, args);
}

template <typename Cell, typename T>
cudaError_t launch_dtype(const RecomputeParams& p, cudaStream_t stream) {
  uintptr_t of_tensors = bits_of(nullptr);
  uintptr_t of_fp32 = 0;
  for (int i = 0; i < p.directions; ++i) {
    const RecomputeDirection& d = p.direction[i];
    of_tensors |= bits_of(d.b_ih) | bits_of(d.b_hh) | bits_of(d.h);
    of_fp32 |= bits_of(d.input_gates) | bits_of(d.hidden_gates) | bits_of(d.coefficients);
  }
  const bool fours = p.h_row % kMostUnits == 0 && lies_in_fours(of_tensors, p.hidden, sizeof(T)) &&
                     lies_in_fours(of_fp32, p.hidden, sizeof(float));
  return fours ? launch_count<Cell, T, kMostUnits>(p, stream) : launch_count<Cell, T, 1>(p, stream);
}

template <typename Cell>
cudaError_t launch_cell(const RecomputeParams& p, cudaStream_t stream) {
  return with_dtype(p.dtype, [&](auto t) { return launch_dtype<Cell, decltype(t)>(p, stream); });
}

}  // namespace

cudaError_t launch_recompute(const RecomputeParams& p, cudaStream_t stream) {
  switch (p.cell) {
    case Cell::Gru:
      return launch_cell<GruRecompute>(p, stream);
    case Cell::Lstm:
      return launch_cell<LstmRecompute>(p, stream);
    case Cell::RnnTanh:
      return launch_cell<RnnRecompute<false>>(p, stream);
    case Cell::RnnRelu:
      return launch_cell<RnnRecompute<true>>(p, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_scan(const ScanParams& p, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(p.batch * p.hidden, int64_t{kScanThreads})),
                        static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kScanThreads);
  config.stream = stream;
  return with_dtype(p.dtype,
                    [&](auto t) { return cudaLaunchKernelEx(&config, scan_kernel<decltype(t)>, p); });
}

}  // namespace aten_ext::cuda
