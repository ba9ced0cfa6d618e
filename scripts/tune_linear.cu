// Times every plan of the linear layers' kernels (aten_ext/ops/linear/few_rows.cu, gemv.cuh), says where
// their policies do not choose the fastest, and compares each result with one in fp64. Needs a GPU of sm_90
// or newer, no PyTorch:
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Iaten_ext scripts/tune_linear.cu -o
//   tune_linear &&
//     ./tune_linear [text]
//
// Prints one line for each shape and plan, in us a call: CUDA-graph replays of calls that rotate through more
// weights than the L2 holds; the median of 9; and the error, |result - exact| / |exact| in 2-norms. `text`
// keeps the lines that contain it ("bf16", "K=768"). Exits with 1 if an error is larger than it may be.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ops/linear/few_rows.cu"
#include "ops/linear/gemv.cu"

namespace tune_linear {

using namespace aten_ext;
using namespace aten_ext::cuda;
using namespace aten_ext::cuda::few_rows;

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "tune_linear: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }
}

struct Shape {
  int n, k;
};
constexpr Shape kShapes[] = {{3072, 768},   {768, 3072}, {8000, 1280}, {4096, 4096}, {11008, 4096},
                             {4096, 11008}, {64, 16384}, {1024, 1024}, {64, 64},     {50257, 768}};
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64};
constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times the L2 of an H200
constexpr int kReplays = 9;
constexpr int kMostCopies = 64;
// Of fp32 the error of a sum in some 30 parts, of bf16 that of the last rounding.
constexpr double kMostErrorFloat = 2e-7, kMostErrorBFloat16 = 3e-3;
// Of dot products: a lane adds up more terms one by one, most with a plan that is not chosen.
constexpr double kMostErrorOfDots = 1e-6;

// ---- operands and errors -------------------------------------------------------------------------------

// Near to normal, of variance 1: four uniform numbers of a hash of i.
__device__ float random_number(uint64_t i, uint32_t seed) {
  uint64_t state = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
  float sum = 0.0f;
  for (int j = 0; j < 4; ++j) {
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9ull;
    state = (state ^ state >> 27) * 0x94d049bb133111ebull;
    state ^= state >> 31;
    sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
  }
  return sum * 1.7320508f;
}

template <typename T>
__global__ void fill(T* to, size_t count, float scale, uint32_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    to[i] = from_op<T>(scale * random_number(i, seed));
  }
}

// Grid: a warp for each column and row.
template <typename T>
__global__ void exact_result(LinearParams p, double* exact) {
  const int n = static_cast<int>(blockIdx.x);
  const int m = static_cast<int>(blockIdx.y);
  const T* x = static_cast<const T*>(p.mat1) + m * p.mat1_stride;
  const T* w = static_cast<const T*>(p.mat2);
  double sum = 0.0;
  for (int k = static_cast<int>(threadIdx.x); k < p.K; k += 32) {
    const int64_t at = p.mat2_is_transposed ? n * p.mat2_stride + k : k * p.mat2_stride + n;
    sum += static_cast<double>(to_op(x[k])) * static_cast<double>(to_op(w[at]));
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  }
  if (threadIdx.x == 0) {
    const double bias = to_op(static_cast<const T*>(p.bias)[n]);
    exact[m * static_cast<int64_t>(p.N) + n] = fmax(sum + bias, 0.0);
  }
}

// Squares of the error and of the exact result.
template <typename T>
__global__ void add_squares(const double* exact, const T* result, size_t count, double* sums) {
  double error = 0.0;
  double size = 0.0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    const double difference = static_cast<double>(to_op(result[i])) - exact[i];
    error += difference * difference;
    size += exact[i] * exact[i];
  }
  atomicAdd(&sums[0], error);
  atomicAdd(&sums[1], size);
}

struct Memory {
  char* weights;  // kRotatedBytes, or one weight
  char* small;    // mat1, bias and out, of small_bytes each
  size_t small_bytes;
  double* exact;
  double* sums;
};

// `AnyPlan`: of tiles or of dot products.
template <typename T, typename AnyPlan>
double error_of(const LinearParams& p, const AnyPlan& plan, const Memory& memory, cudaStream_t stream) {
  const size_t count = static_cast<size_t>(p.M) * static_cast<size_t>(p.N);
  check(cudaMemsetAsync(p.out, 0xff, count * sizeof(T), stream));  // NaN
  if (launch_few_rows(p, plan, stream) != cudaSuccess) {
    cudaGetLastError();
    return -1.0;
  }
  check(cudaMemsetAsync(memory.sums, 0, 2 * sizeof(double), stream));
  add_squares<T><<<64, 256, 0, stream>>>(memory.exact, static_cast<const T*>(p.out), count, memory.sums);
  check(cudaGetLastError());
  double sums[2];
  check(cudaMemcpyAsync(sums, memory.sums, sizeof(sums), cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream));
  return std::sqrt(sums[0] / sums[1]);
}

// ---- times -----------------------------------------------------------------------------------------------

// Median us a call.
template <typename AnyPlan>
float time_plan(LinearParams p, const AnyPlan& plan, const Memory& memory, size_t bytes, int copies,
                cudaStream_t stream) {
  const int calls = std::max(copies, 16);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) {
    p.mat2 = memory.weights + bytes * static_cast<size_t>(i % copies);
    check(launch_few_rows(p, plan, stream));
  }
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t before, after;
  check(cudaEventCreate(&before));
  check(cudaEventCreate(&after));
  std::vector<float> times;
  for (int i = 0; i < kReplays + 2; ++i) {
    check(cudaEventRecord(before, stream));
    check(cudaGraphLaunch(replay, stream));
    check(cudaEventRecord(after, stream));
    check(cudaEventSynchronize(after));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before, after));
    if (i >= 2) {
      times.push_back(milliseconds * 1e3f / static_cast<float>(calls));
    }
  }
  check(cudaEventDestroy(before));
  check(cudaEventDestroy(after));
  check(cudaGraphExecDestroy(replay));
  check(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// False if a result is wrong. Layers that the kernel of dot products takes, whether or not it is chosen.
template <typename T>
bool tune_dots(const LinearParams& p, const Layer& layer, const char* name, const Memory& memory,
               size_t bytes, int copies, cudaStream_t stream) {
  constexpr bool kIsFloat = sizeof(T) == 4;
  if (!gemv::can_take(layer)) {
    return true;
  }
  const gemv::Plan chosen = gemv::choose_plan(layer);
  const int rows = gemv::rows_of(layer.m);
  float of_chosen = -1.0f;
  float best = 1e9f;
  bool right = true;
  for (int warps = 1; warps <= gemv::kMostWarps; warps *= 2) {
    for (const int columns : {1, 2, 4}) {
      for (const int steps : {1, 2, 4}) {
        if (!gemv::is_plan(rows, warps, columns, steps)) {
          continue;
        }
        const gemv::Plan plan{rows, warps, columns, steps, weight_bytes(layer) <= kPrefetchedBytes};
        const bool is_chosen =
            chosen.rows != 0 && warps == chosen.warps && columns == chosen.columns && steps == chosen.steps;
        const double error = error_of<T>(p, plan, memory, stream);
        const bool is_right = error >= 0.0 && error < (kIsFloat ? kMostErrorOfDots : kMostErrorBFloat16);
        right = right && is_right;
        const float time = time_plan(p, plan, memory, bytes, copies, stream);
        std::printf("%s dots warps=%d columns=%d steps=%d %8.2f us  error %.2e%s%s\n", name, warps, columns,
                    steps, time, error, is_right ? "" : "  WRONG", is_chosen ? "  <- chosen" : "");
        of_chosen = is_chosen ? time : of_chosen;
        best = std::min(best, time);
      }
    }
  }
  std::printf("%s dots chosen %.2f us, best %.2f%s\n", name, of_chosen, best,
              of_chosen > 1.1f * best ? "  POLICY LOSES" : "");
  return right;
}

// The same of tiles, and of both.
template <typename T>
bool tune(const LinearParams& p, const Machine& machine, const char* name, const Memory& memory,
          size_t weight_bytes, cudaStream_t stream) {
  constexpr bool kIsFloat = sizeof(T) == 4;
  exact_result<T>
      <<<dim3(static_cast<unsigned>(p.N), static_cast<unsigned>(p.M)), 32, 0, stream>>>(p, memory.exact);
  check(cudaGetLastError());
  const size_t bytes = static_cast<size_t>(p.N) * static_cast<size_t>(p.K) * sizeof(T);
  const int copies =
      static_cast<int>(std::min<size_t>(std::max<size_t>(weight_bytes / bytes, 1), kMostCopies));
  const Layer layer{p.M, p.N, p.K, kIsFloat, p.mat2_is_transposed, machine};
  const Plan chosen = choose_plan(layer);
  float of_chosen = -1.0f;
  float best = 1e9f;
  Plan fastest = chosen;
  bool right = true;
  for (int groups = 1; groups <= kMaxGroups; groups *= 2) {
    for (int i = 0; i < 2 * kMaxSplits; ++i) {
      const int splits = i / 2 + 1;
      const bool alone = i % 2 == 1;
      const Plan plan = make_plan(layer, groups, splits, alone);
      const int blocks = ceil_div(p.N, columns_of(plan)) * splits;
      const bool is_chosen = groups == chosen.groups && splits == chosen.splits && alone == chosen.alone;
      if (!is_tile(plan.rows, groups, true) || (alone && !has_alone(kIsFloat, plan.rows, groups, true)) ||
          splits > stages_of(p.K, kIsFloat, plan) ||
          (!is_chosen && blocks > 8 * kBlocksPerMultiprocessor * machine.multiprocessors)) {
        continue;
      }
      const double error = error_of<T>(p, plan, memory, stream);
      if (error < 0.0) {
        std::printf("%s groups=%d splits=%d refused\n", name, groups, splits);
        continue;
      }
      const bool is_right = error < (kIsFloat ? kMostErrorFloat : kMostErrorBFloat16);
      right = right && is_right;
      const float time = time_plan(p, plan, memory, bytes, copies, stream);
      std::printf("%s groups=%d splits=%d%s %8.2f us  estimated %8.2f  error %.2e%s%s\n", name, groups,
                  splits, alone ? " alone" : "", time,
                  alone ? estimate_alone(layer, plan) : estimate(layer, plan), error,
                  is_right ? "" : "  WRONG", is_chosen ? "  <- chosen" : "");
      if (is_chosen) {
        of_chosen = time;
      }
      if (time < best) {
        best = time;
        fastest = plan;
      }
    }
  }
  std::printf("%s chosen %.2f us, best %.2f (groups=%d splits=%d%s)%s\n", name, of_chosen, best,
              fastest.groups, fastest.splits, fastest.alone ? " alone" : "",
              of_chosen > 1.03f * best ? "  POLICY LOSES" : "");
  return tune_dots<T>(p, layer, name, memory, bytes, copies, stream) && right;
}

template <typename T>
bool tune_dtype(Dtype dtype, const char* dtype_name, const std::string& text, const Machine& machine,
                const Memory& memory, size_t weight_bytes, cudaStream_t stream) {
  bool right = true;
  for (const Shape shape : kShapes) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.k));
    fill<<<1024, 256, 0, stream>>>(reinterpret_cast<T*>(memory.weights), weight_bytes / sizeof(T), scale, 1u);
    fill<<<256, 256, 0, stream>>>(reinterpret_cast<T*>(memory.small), memory.small_bytes / sizeof(T), 1.0f,
                                  2u);
    fill<<<256, 256, 0, stream>>>(reinterpret_cast<T*>(memory.small + memory.small_bytes),
                                  memory.small_bytes / sizeof(T), 1.0f, 3u);
    check(cudaGetLastError());
    for (const bool transposed : {true, false}) {
      if (!transposed && shape.n % 8 != 0) {
        continue;
      }
      for (const int rows : kRows) {
        char name[96];
        std::snprintf(name, sizeof(name), "%s M=%d K=%d N=%d %s", dtype_name, rows, shape.k, shape.n,
                      transposed ? "weight" : "row-major");
        if (std::string(name).find(text) == std::string::npos) {
          continue;
        }
        LinearParams p{};
        p.mat1 = memory.small;
        p.mat2 = memory.weights;
        p.bias = memory.small + memory.small_bytes;
        p.out = memory.small + 2 * memory.small_bytes;
        p.M = rows;
        p.N = shape.n;
        p.K = shape.k;
        p.mat1_stride = shape.k;
        p.mat2_stride = transposed ? shape.k : shape.n;
        p.bias_stride_n = 1;
        p.out_stride = shape.n;
        p.alpha = p.beta = 1.0f;
        p.dtype = dtype;
        p.epilogue = Epilogue::ReLU;
        p.mat2_is_transposed = transposed;
        p.vectors = true;
        right = tune<T>(p, machine, name, memory, weight_bytes, stream) && right;
      }
    }
  }
  return right;
}

}  // namespace tune_linear

int main(int argc, char** argv) {
  using namespace tune_linear;
  const std::string text = argc > 1 ? argv[1] : "";
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  Machine machine = kH200;  // its clusters too
  machine.multiprocessors = properties.multiProcessorCount;
  std::printf("%s, %d multiprocessors\n", properties.name, machine.multiprocessors);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  size_t weight_bytes = kRotatedBytes;
  size_t most_columns = 0;
  for (const Shape shape : kShapes) {
    weight_bytes = std::max(weight_bytes, static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k) * 4);
    most_columns = std::max(most_columns, static_cast<size_t>(shape.n));
  }
  Memory memory{};
  memory.small_bytes = size_t{16} << 20;
  check(cudaMalloc(&memory.weights, weight_bytes));
  check(cudaMalloc(&memory.small, 3 * memory.small_bytes));
  check(cudaMalloc(&memory.exact, kMaxRows * most_columns * sizeof(double)));
  check(cudaMalloc(&memory.sums, 2 * sizeof(double)));
  const bool right_float =
      tune_dtype<float>(Dtype::Float, "fp32", text, machine, memory, weight_bytes, stream);
  const bool right_bf16 =
      tune_dtype<__nv_bfloat16>(Dtype::BFloat16, "bf16", text, machine, memory, weight_bytes, stream);
  check(cudaDeviceSynchronize());
  return right_float && right_bf16 ? 0 : 1;
}
