// Kernels that use one thing of the device each, so that a test can tell whether device_on_host has it right.
#include <torch/library.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "device/async_copy.cuh"
#include "device/cluster.cuh"
#include "device/mbarrier.cuh"
#include "device/mma.cuh"
#include "device/shared.cuh"
#include "device/sync.cuh"
#include "ops/rnn/flagged.cuh"

namespace {

using namespace aten_ext::cuda;

template <typename... Parameters, typename... Arguments>
void run(dim3 grid, dim3 block, size_t shared, std::vector<cudaLaunchAttribute> attributes,
         void (*kernel)(Parameters...), Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.attrs = attributes.data();
  config.numAttrs = static_cast<unsigned>(attributes.size());
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
  TORCH_CHECK(error == cudaSuccess, "launch refused");
}

// Sum of each block's [blockDim] elements: shuffles within warps, shared memory and a barrier between them.
__global__ void sum_kernel(const float* from, float* to) {
  __shared__ float of_warp[32];
  float sum = from[blockIdx.x * blockDim.x + threadIdx.x];
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, lanes);
  }
  if (threadIdx.x % 32 == 0) {
    of_warp[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0.0f;
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      sum += __shfl_down_sync(0xffffffff, sum, lanes);
    }
    if (threadIdx.x == 0) {
      to[blockIdx.x] = sum;
    }
  }
}

at::Tensor sum_of_blocks(const at::Tensor& x, int64_t threads) {
  const int64_t blocks = x.numel() / threads;
  at::Tensor result = at::empty({blocks}, x.options());
  run(blocks, threads, 0, {}, sum_kernel, x.const_data_ptr<float>(), result.mutable_data_ptr<float>());
  return result;
}

// The same without its barrier: right in one order of threads only.
__global__ void race_kernel(float* to) {
  __shared__ float value[64];
  value[threadIdx.x] = static_cast<float>(threadIdx.x);
  to[threadIdx.x] = value[(threadIdx.x + 63) % 64];
}

at::Tensor race() {
  at::Tensor result = at::empty({64});
  run(1, 64, 0, {}, race_kernel, result.mutable_data_ptr<float>());
  return result;
}

// Each block hands its rank, `steps` times, to the next of its cluster, through shared memory of both kinds.
__global__ void ring_kernel(int* to, uint32_t blocks, int steps) {
  __shared__ int fixed[2];
  int* dynamic = dynamic_shared<int>();
  const uint32_t next = (cluster_rank() + 1) % blocks;
  if (threadIdx.x == 0) {
    fixed[0] = dynamic[0] = static_cast<int>(cluster_rank());
  }
  cluster_arrive();
  cluster_wait();
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x == 0) {
      static_cast<int*>(device_on_host::map_shared(fixed, next))[(step + 1) % 2] = fixed[step % 2];
      static_cast<int*>(device_on_host::map_shared(dynamic, next))[(step + 1) % 2] = dynamic[step % 2];
    }
    cluster_arrive();
    cluster_wait();
  }
  if (threadIdx.x == 0) {
    to[2 * blockIdx.x] = fixed[steps % 2];
    to[2 * blockIdx.x + 1] = dynamic[steps % 2];
  }
}

at::Tensor ring(int64_t blocks, int64_t cluster, int64_t steps) {
  at::Tensor result = at::empty({blocks, 2}, at::kInt);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  run(blocks, 64, 64, {attribute}, ring_kernel, result.mutable_data_ptr<int>(),
      static_cast<uint32_t>(cluster), static_cast<int>(steps));
  return result;
}

// Each block sends its rank to the next of its cluster and reads what has come, before or after it has waited
// for the bytes; or does not wait at all.
__global__ void exchange_kernel(int* to, uint32_t blocks, bool waits, bool waits_first) {
  __shared__ uint32_t came;
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) {
    came = 99;
    make_mbarrier(&arrived, 1);
    fence_mbarriers();
    arrive_and_expect(&arrived, sizeof(came));
  }
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x == 0) {
    store_async(peer_shared(&came, (cluster_rank() + 1) % blocks), &came, cluster_rank(), &arrived);
    if (waits && waits_first) {
      wait_for_phase(&arrived, 0);
    }
    to[blockIdx.x] = static_cast<int>(came);
    if (waits && !waits_first) {
      wait_for_phase(&arrived, 0);
    }
  }
}

at::Tensor exchange(int64_t blocks, bool waits, bool waits_first) {
  at::Tensor result = at::empty({blocks}, at::kInt);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(blocks), 1, 1};
  run(blocks, 32, 0, {attribute}, exchange_kernel, result.mutable_data_ptr<int>(),
      static_cast<uint32_t>(blocks), waits, waits_first);
  return result;
}

// Blocks of a whole cooperative grid wait for one another in global memory: every block sees what all wrote.
__global__ void grid_kernel(uint64_t* words, float* to) {
  if (threadIdx.x == 0) {
    store_flagged(words + blockIdx.x, blockIdx.x, 1);
    float sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) {
      Flagged word;
      do {
        word = load_flagged(words + i);
      } while (word.flag != 1);
      sum += static_cast<float>(word.data);
    }
    to[blockIdx.x] = sum;
  }
}

// The same with words of three values, one after the other in the same place.
__global__ void triples_kernel(uint64_t* words, int misaligned, float* to) {
  if (threadIdx.x == 0) {
    float sum = 0;
    for (uint32_t round = 1; round <= 2; ++round) {
      uint64_t* const of_round = words + round % 2 * 2 * gridDim.x + misaligned;
      store_triple(of_round + 2 * blockIdx.x, {{blockIdx.x, round, 100 * round}, round});
      for (unsigned i = 0; i < gridDim.x; ++i) {
        TaggedTriple word;
        do {
          word = load_triple(of_round + 2 * i);
        } while (word.tag != round);
        sum += static_cast<float>(word.value[0] * word.value[1] + word.value[2]);
      }
    }
    to[blockIdx.x] = sum;
  }
}

at::Tensor triples(int64_t blocks, bool misaligned) {
  at::Tensor words = at::zeros({4 * blocks + 2}, at::kLong);
  at::Tensor result = at::zeros({blocks});
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  run(blocks, 32, 0, {attribute}, triples_kernel,
      reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>()), misaligned ? 1 : 0,
      result.mutable_data_ptr<float>());
  return result;
}

at::Tensor grid(int64_t blocks, bool cooperative) {
  at::Tensor words = at::zeros({blocks}, at::kLong);
  at::Tensor result = at::zeros({blocks});
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = cooperative ? 1 : 0;
  run(blocks, 32, 0, {attribute}, grid_kernel, reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>()),
      result.mutable_data_ptr<float>());
  return result;
}

// C[16,8] = A[16,16] B[16,8] of bf16 or fp16; A through shared memory.
template <typename T>
__global__ void mma_kernel(const T* a, const T* b, float* c) {
  T* shared = dynamic_shared<T>();
  copy_async_16(shared + threadIdx.x * 8, a + threadIdx.x * 8);
  commit_async_copies();
  wait_async_copies<0>();
  __syncwarp();
  const unsigned lane = threadIdx.x;
  uint32_t fragment_a[4], fragment_b[2];
  // Rows g and g + 8 of columns 0-7, then of columns 8-15.
  for (int i = 0; i < 4; ++i) {
    memcpy(&fragment_a[i], shared + (lane / 4 + i % 2 * 8) * 16 + lane % 4 * 2 + i / 2 * 8, 4);
  }
  for (int i = 0; i < 2; ++i) {
    T pair[2];
    for (int j = 0; j < 2; ++j) {
      pair[j] = b[(lane % 4 * 2 + i * 8 + j) * 8 + lane / 4];
    }
    memcpy(&fragment_b[i], pair, 4);
  }
  float d[4] = {};
  mma_m16n8k16<T>(d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) {
    c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
  }
}

at::Tensor mma(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor result = at::empty({16, 8});
  const auto launch = [&](auto zero) {
    using T = decltype(zero);
    run(1, 32, 512, {}, mma_kernel<T>, static_cast<const T*>(a.const_data_ptr()),
        static_cast<const T*>(b.const_data_ptr()), result.mutable_data_ptr<float>());
  };
  if (a.scalar_type() == at::kHalf) {
    launch(__half());
  } else {
    launch(__nv_bfloat16());
  }
  return result;
}

// An 8 x 8 matrix of 16 bits, transposed by one instruction.
__global__ void transpose_kernel(const uint32_t* from, uint32_t* to) {
  to[threadIdx.x] = transpose_8x8(from[threadIdx.x]);
}

at::Tensor transposed(const at::Tensor& matrix) {
  at::Tensor result = at::empty_like(matrix);
  run(1, 32, 0, {}, transpose_kernel, static_cast<const uint32_t*>(matrix.const_data_ptr()),
      static_cast<uint32_t*>(result.mutable_data_ptr()));
  return result;
}

// C[16,8] = A[16,8] B[8,8] in TF32.
__global__ void tf32_kernel(const float* a, const float* b, float* c) {
  const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
  const uint32_t fragment_a[4] = {round_to_tf32(a[g * 8 + t]), round_to_tf32(a[(g + 8) * 8 + t]),
                                  round_to_tf32(a[g * 8 + t + 4]), round_to_tf32(a[(g + 8) * 8 + t + 4])};
  const uint32_t fragment_b[2] = {round_to_tf32(b[t * 8 + g]), round_to_tf32(b[(t + 4) * 8 + g])};
  float d[4] = {};
  mma_m16n8k8_tf32(d, fragment_a, fragment_b);
  for (int i = 0; i < 4; ++i) {
    c[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = d[i];
  }
}

at::Tensor mma_tf32(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor result = at::empty({16, 8});
  run(1, 32, 0, {}, tf32_kernel, a.const_data_ptr<float>(), b.const_data_ptr<float>(),
      result.mutable_data_ptr<float>());
  return result;
}

// Thread 0 never comes to the barrier of the others.
__global__ void stuck_kernel() {
  if (threadIdx.x == 0) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

void stuck() {
  run(1, 64, 0, {}, stuck_kernel);
}

// bits: __byte_perm(x, y, selector), __funnelshift_r(x, y, shift)
__global__ void bits_kernel(uint32_t x, uint32_t y, uint32_t argument, int* to) {
  to[0] = static_cast<int>(__byte_perm(x, y, argument));
  to[1] = static_cast<int>(__funnelshift_r(x, y, argument));
  to[2] = static_cast<int>(__ballot_sync(1, 1));
}

at::Tensor bits(int64_t x, int64_t y, int64_t argument) {
  at::Tensor result = at::empty({3}, at::kInt);
  run(1, 1, 0, {}, bits_kernel, static_cast<uint32_t>(x), static_cast<uint32_t>(y),
      static_cast<uint32_t>(argument), result.mutable_data_ptr<int>());
  return result;
}

void set_order(int64_t order, int64_t seed) {
  device_on_host::set_order(static_cast<device_on_host::Order>(order), static_cast<uint64_t>(seed));
}

// Four bytes from `offset` bytes on.
__global__ void word_kernel(const char* from, int offset, uint32_t* to) {
  *to = *reinterpret_cast<const uint32_t*>(from + offset);
}

__global__ void element_kernel(int index, float* to) {
  const float elements[3] = {1.0f, 2.0f, 4.0f};
  *to = elements[index];
}

at::Tensor element(int64_t index) {
  at::Tensor result = at::zeros({1});
  run(1, 1, 0, {}, element_kernel, static_cast<int>(index), result.mutable_data_ptr<float>());
  return result;
}

at::Tensor word(int64_t offset) {
  const at::Tensor from = at::zeros({4}, at::kInt);
  at::Tensor to = at::empty({1}, at::kInt);
  run(1, 1, 0, {}, word_kernel, static_cast<const char*>(from.data_ptr()), static_cast<int>(offset),
      static_cast<uint32_t*>(to.data_ptr()));
  return to;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_selftest, m) {
  m.def("sum_of_blocks", &sum_of_blocks);
  m.def("race", &race);
  m.def("ring", &ring);
  m.def("exchange", &exchange);
  m.def("grid", &grid);
  m.def("triples", &triples);
  m.def("mma", &mma);
  m.def("mma_tf32", &mma_tf32);
  m.def("transposed", &transposed);
  m.def("stuck", &stuck);
  m.def("bits", &bits);
  m.def("word", &word);
  m.def("element", &element);
  m.def("set_order", &set_order);
}
