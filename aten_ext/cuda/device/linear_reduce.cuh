// Adds up the partial sums of a tile: first those of a block's groups of warps, then those of the blocks of
// a cluster, through distributed shared memory. Always in the same order, so the same bits on every run.
#pragma once

#include <cuda_runtime.h>

#include "cuda/device/cluster.cuh"

namespace aten_ext::cuda {

// Calls store(m, n, sum) once for each m < m_end and n < columns, in one of the cluster's blocks.
// `partial` is [groups][rows][stride] in the shared memory of each of `blocks` blocks, written and not yet
// waited for; they are one cluster unless there is only one. All threads of the block.
template <int threads, int groups, int rows, int columns, int stride, typename Store>
__device__ __forceinline__ void reduce_partial_sums(float* partial, int m_end, int blocks,
                                                    const Store& store) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < m_end * columns; i += threads) {
    const int m = i / columns;
    const int n = i % columns;
    float* at = partial + m * stride + n;
    float sum = at[0];
#pragma unroll
    for (int group = 1; group < groups; ++group) {
      sum += at[group * rows * stride];
    }
    if (blocks == 1) {
      store(m, n, sum);
    } else {
      at[0] = sum;
    }
  }
  if (blocks == 1) {
    return;
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  const int rank = static_cast<int>(cluster_rank());
  for (int i = rank * threads + static_cast<int>(threadIdx.x); i < m_end * columns; i += blocks * threads) {
    const int m = i / columns;
    const int n = i % columns;
    float sum = 0.0f;
#pragma unroll 4
    for (int block = 0; block < blocks; ++block) {
      sum += map_shared(partial, static_cast<uint32_t>(block))[m * stride + n];
    }
    store(m, n, sum);
  }
  // Nobody leaves while its shared memory is read.
  __syncwarp();
  cluster_arrive_relaxed();
  cluster_wait();
}

}  // namespace aten_ext::cuda
