// Adds up the partial sums of a tile: first those of a block's warps, then those of the blocks of a cluster,
// through distributed shared memory. Always in the same order, so the same bits on every run.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/cluster.cuh"

namespace aten_ext::cuda {

// How many of a tile's elements each block of a cluster finishes.
constexpr __host__ __device__ int elements_of_block(int elements, int blocks) {
  return ((elements + blocks - 1) / blocks + 31) / 32 * 32;
}

// Calls store(m, n, sum) for each m < m_end and n < columns, in one of the cluster's blocks, by whole warps:
// lanes that have no element get m < 0.
// `partial` is [groups][rows][stride] in shared memory, written and not yet waited for. `gathered` is further
// shared memory, of elements_of_block() * blocks floats, for which the cluster's blocks have arrived at a
// barrier but not yet waited. All threads of the block.
template <int threads, int groups, int rows, int columns, int stride, typename Store>
__device__ __forceinline__ void reduce_partial_sums(const float* partial, float* gathered, int m_end,
                                                    int blocks, int rank, const Store& store) {
  const int elements = m_end * columns;
  const int of_block = elements_of_block(elements, blocks);
  const auto sum_of_groups = [&](int i) {
    const float* at = partial + i / columns * stride + i % columns;
    float sum = at[0];
#pragma unroll
    for (int group = 1; group < groups; ++group) {
      sum += at[group * rows * stride];
    }
    return sum;
  };
  __syncthreads();
  if (blocks == 1) {
    for (int i = static_cast<int>(threadIdx.x); i < of_block; i += threads) {
      const bool exists = i < elements;
      store(exists ? i / columns : -1, i % columns, exists ? sum_of_groups(i) : 0.0f);
    }
    return;
  }
  __syncwarp();
  cluster_wait();  // all blocks have begun: their shared memory may be written
  for (int i = static_cast<int>(threadIdx.x); i < elements; i += threads) {
    const int owner = i / of_block;
    map_shared(gathered, static_cast<uint32_t>(owner))[rank * of_block + i - owner * of_block] =
        sum_of_groups(i);
  }
  __syncwarp();
  cluster_arrive();
  cluster_wait();
  for (int i = static_cast<int>(threadIdx.x); i < of_block; i += threads) {
    const int element = rank * of_block + i;
    const bool exists = element < elements;
    float sum = 0.0f;
    if (exists) {
#pragma unroll 4
      for (int block = 0; block < blocks; ++block) {
        sum += gathered[block * of_block + i];
      }
    }
    store(exists ? element / columns : -1, element % columns, sum);
  }
}

}  // namespace aten_ext::cuda
