// Faults on purpose for compute-sanitizer, and the same code without the fault:
//
//     canary memcheck|racecheck|initcheck|synccheck|cluster|exchange fault|fixed
//
// If a fault is not reported, a clean run means nothing; if what is fixed is reported, the tool does not
// understand what the kernels do. `cluster` and `exchange` are for racecheck: blocks that write into each
// other's shared memory, with plain stores and with the asynchronous ones of the GRU and of linear layers.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "device/cluster.cuh"
#include "device/mbarrier.cuh"

namespace aten_ext::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 4;

// One element past the end.
__global__ void canary_memcheck(float* out, bool fixed) {
  out[threadIdx.x + (fixed ? 0 : 1)] = 1.0f;
}

// A warp reads what another has written.
__global__ void canary_racecheck(float* out, bool fixed) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (fixed) {
    __syncthreads();
  }
  out[threadIdx.x] = values[kThreads - 1 - threadIdx.x];
}

// Memory that nothing was written to.
__global__ void canary_initcheck(float* out, bool fixed) {
  if (fixed) {
    out[threadIdx.x] = 1.0f;
  }
  out[threadIdx.x] += 1.0f;
}

// A barrier that half a warp does not come to.
__global__ void canary_synccheck(float* out, bool fixed) {
  if (fixed || threadIdx.x % 2 == 0) {
    __syncthreads();
  }
  out[threadIdx.x] = 1.0f;
}

// Every block stores to the next one, which reads before the barrier of both.
__global__ __cluster_dims__(kBlocks) void canary_cluster(float* out, bool fixed) {
  __shared__ float values[kThreads];
  cluster_arrive();
  cluster_wait();
  *cooperative_groups::this_cluster().map_shared_rank(values + threadIdx.x, (cluster_rank() + 1) % kBlocks) =
      1.0f;
  if (fixed) {
    cluster_arrive();
    cluster_wait();
  }
  out[threadIdx.x] = values[threadIdx.x];
  cluster_arrive();
  cluster_wait();
}

// The same with stores that count on the next block's barrier when they arrive.
__global__ __cluster_dims__(kBlocks) void canary_exchange(float* out, bool fixed) {
  __shared__ alignas(16) uint32_t values[kThreads];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    make_mbarrier(&arrived, 1);
    fence_mbarriers();
    arrive_and_expect(&arrived, sizeof(values));
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  const PeerShared next = peer_shared(values, (cluster_rank() + 1) % kBlocks);
  store_async(next, values + threadIdx.x, threadIdx.x, &arrived);
  if (fixed) {
    wait_for_phase(&arrived, 0);
  }
  out[threadIdx.x] = static_cast<float>(values[threadIdx.x]);
  wait_for_phase(&arrived, 0);
  cluster_arrive();
  cluster_wait();
}

using Canary = void (*)(float*, bool);

struct Named {
  const char* name;
  Canary kernel;
  int blocks;
};
constexpr Named kCanaries[] = {{"memcheck", canary_memcheck, 1},     {"racecheck", canary_racecheck, 1},
                               {"initcheck", canary_initcheck, 1},   {"synccheck", canary_synccheck, 1},
                               {"cluster", canary_cluster, kBlocks}, {"exchange", canary_exchange, kBlocks}};

}  // namespace
}  // namespace aten_ext::cuda

int main(int count, char** arguments) {
  using namespace aten_ext::cuda;
  const char* const name = count > 1 ? arguments[1] : "";
  const bool fixed = count > 2 && std::strcmp(arguments[2], "fixed") == 0;
  for (const Named& canary : kCanaries) {
    if (std::strcmp(name, canary.name) != 0) {
      continue;
    }
    float* out = nullptr;
    cudaError_t error = cudaMalloc(&out, kThreads * sizeof(float));
    if (error == cudaSuccess) {
      canary.kernel<<<canary.blocks, kThreads>>>(out, fixed);
      error = cudaDeviceSynchronize();
    }
    if (error != cudaSuccess) {
      std::fprintf(stderr, "canary: %s\n", cudaGetErrorString(error));
    }
    return error != cudaSuccess;
  }
  std::fprintf(stderr, "canary: expected the name of a fault, got '%s'\n", name);
  return 2;
}
