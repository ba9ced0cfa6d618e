// Times every plan of the linear layers' kernel (aten_ext/cuda/linear.cu) and says where its policy does not
// choose the fastest. Needs a GPU of sm_90 or newer, no PyTorch:
//
//   nvcc -O3 -std=c++17 -arch=sm_90a -Iaten_ext scripts/tune_linear.cu -o tune_linear && ./tune_linear [text]
//
// Prints one line for each shape and plan, in us a call: CUDA-graph replays of calls that rotate through more
// weights than the L2 holds; the median of 15. `text` keeps the lines that contain it ("bf16", "K=768").
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/linear.cu"

namespace {

using namespace aten_ext::cuda;

void check(cudaError_t error) {
  if (error != cudaSuccess) {
    std::fprintf(stderr, "tune_linear: %s\n", cudaGetErrorString(error));
    std::exit(1);
  }
}

struct Shape {
  int n, k;
};
constexpr Shape kShapes[] = {{3072, 768},   {768, 3072},   {8000, 1280}, {4096, 4096},
                             {11008, 4096}, {4096, 11008}, {1024, 1024}, {50257, 768}};
constexpr int kRows[] = {1, 2, 4, 8, 16, 32, 64};
constexpr size_t kRotatedBytes = size_t{256} << 20;  // several times the L2 of an H200
constexpr int kReplays = 15;

struct Weights {
  char* memory;
  size_t bytes;  // of one
  int count;
};

// Median us a call; negative if a launch is refused.
float time_plan(LinearParams p, Plan plan, const Weights& weights, cudaStream_t stream) {
  if (launch_with(p, plan, stream) != cudaSuccess) {
    cudaGetLastError();
    return -1.0f;
  }
  check(cudaStreamSynchronize(stream));
  const int calls = std::max(weights.count, 16);
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) {
    p.mat2 = weights.memory + weights.bytes * static_cast<size_t>(i % weights.count);
    check(launch_with(p, plan, stream));
  }
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&replay, graph, 0));
  cudaEvent_t before, after;
  check(cudaEventCreate(&before));
  check(cudaEventCreate(&after));
  std::vector<float> times;
  for (int i = 0; i < kReplays + 3; ++i) {
    check(cudaEventRecord(before, stream));
    check(cudaGraphLaunch(replay, stream));
    check(cudaEventRecord(after, stream));
    check(cudaEventSynchronize(after));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before, after));
    if (i >= 3) {
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

// What the policy takes for granted: how many blocks of the largest kernel are on the GPU at once.
void print_resident(cudaStream_t stream, int multiprocessors) {
  constexpr int kBytes = Shared<Product<float, true, 64, kWideColumns>>::kBytes;
  const auto kernel = linear_kernel<float, true, 64, kWideColumns>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared));
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, kBytes));
  std::printf("blocks a multiprocessor: %d (policy: %d)\n", blocks, kBlocksPerSM);
  for (int splits = 2; splits <= kMostSplits; ++splits) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = static_cast<unsigned>(splits);
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(64 * splits));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kBytes;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    std::printf("clusters of %d: %d, %d blocks (policy: %d)\n", splits, clusters, clusters * splits,
                resident_blocks(splits, multiprocessors));
  }
}

void tune(LinearParams p, bool is_float, int multiprocessors, const char* name, const Weights& weights,
          cudaStream_t stream) {
  const Plan chosen = choose_plan(p.M, p.N, p.K, is_float, multiprocessors);
  const int stages = divide_up(p.K, 256 / (is_float ? 4 : 2));
  float of_chosen = -1.0f;
  float best = 1e9f;
  Plan fastest = chosen;
  for (const int columns : {kWideColumns, kNarrowColumns}) {
    if (columns == kNarrowColumns && (is_float || chosen.rows > kMostNarrowRows)) {
      continue;
    }
    for (int splits = 1; splits <= std::min(kMostSplits, stages); ++splits) {
      const Plan plan{chosen.rows, columns, splits};
      const float time = time_plan(p, plan, weights, stream);
      const bool is_chosen = columns == chosen.columns && splits == chosen.splits;
      std::printf("%s columns=%d splits=%d %8.2f us  estimated %8.2f%s\n", name, columns, splits, time,
                  estimate(p.M, p.N, p.K, is_float, multiprocessors, plan), is_chosen ? "  <- chosen" : "");
      if (is_chosen) {
        of_chosen = time;
      }
      if (time > 0 && time < best) {
        best = time;
        fastest = plan;
      }
    }
  }
  std::printf("%s chosen %.2f us, best %.2f (columns=%d splits=%d)%s\n", name, of_chosen, best,
              fastest.columns, fastest.splits, of_chosen > 1.03f * best ? "  POLICY LOSES" : "");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string text = argc > 1 ? argv[1] : "";
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d multiprocessors\n", properties.name, properties.multiProcessorCount);
  cudaStream_t stream;
  check(cudaStreamCreate(&stream));
  print_resident(stream, properties.multiProcessorCount);
  size_t largest = kRotatedBytes;
  for (const Shape shape : kShapes) {
    largest = std::max(largest, static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k) * 4);
  }
  char* memory;  // zeros: the time does not depend on the values, as far as the power limit is not reached
  char* small;
  check(cudaMalloc(&memory, largest));
  check(cudaMemset(memory, 0, largest));
  const size_t small_bytes = size_t{16} << 20;
  check(cudaMalloc(&small, 3 * small_bytes));
  check(cudaMemset(small, 0, 3 * small_bytes));
  for (const auto& [dtype, dtype_name] :
       {std::pair{LinearDtype::Float, "fp32"}, {LinearDtype::BFloat16, "bf16"}}) {
    const bool is_float = dtype == LinearDtype::Float;
    for (const Shape shape : kShapes) {
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
          p.mat1 = small;
          p.mat2 = memory;
          p.bias = small + small_bytes;
          p.out = small + 2 * small_bytes;
          p.M = rows;
          p.N = shape.n;
          p.K = shape.k;
          p.mat1_stride = shape.k;
          p.mat2_stride = transposed ? shape.k : shape.n;
          p.bias_stride_n = 1;
          p.out_stride = shape.n;
          p.alpha = p.beta = 1.0f;
          p.dtype = dtype;
          p.activation = LinearActivation::ReLU;
          p.mat2_is_transposed = transposed;
          const size_t bytes =
              static_cast<size_t>(shape.n) * static_cast<size_t>(shape.k) * (is_float ? 4 : 2);
          const Weights weights{memory, bytes, static_cast<int>(std::max(largest / bytes, size_t{1}))};
          tune(p, is_float, properties.multiProcessorCount, name, weights, stream);
        }
      }
    }
  }
  return 0;
}
