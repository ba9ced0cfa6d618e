// Adds up the partial sums of a tile: first those of a block's warps, in its shared memory, then those of the
// blocks of a cluster, which send them to one another. Always in the same order, so the same bits on every
// run.
//
// All of a thread's loads are under way before the first is waited for, here and in what is done with the
// sums: one result after the other took 64 x 32 of them 1.4 us. And a cluster's blocks wait for bytes instead
// of at a barrier, whose release is a fence of the whole memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/math.h"
#include "device/cluster.cuh"
#include "device/mbarrier.cuh"
#include "device/vector.cuh"

namespace aten_ext::cuda {

// How many of a tile's elements each block of a cluster finishes.
constexpr int elements_of_block(int elements, int blocks) {
  return blocks == 1 ? elements : round_up(ceil_div(elements, blocks), 32);
}

// Elements are counted row by row; a thread has every `threads`-th of a tile, all of one column, or of those
// that a block of a cluster finishes.
//
// Blocks send one another `width` elements at a time: four where each thread has so many.
template <int threads, int groups, int rows, int columns, int stride, int width>
class PartialSums {
 public:
  static_assert(threads % columns == 0 && columns % 16 == 0 && (width == 1 || width == 4));
  // Sums that one thread finishes at most.
  static constexpr int kSums = ceil_div(rows * columns, threads);

  // Of m_end rows; each of `blocks` blocks finishes of_block elements. `shared` is of kSharedBytes.
  static constexpr int kMaxBlocks = 8;
  // A part is rounded up to 32 by 31 at most. Not a byte more: three blocks of 8 rows and 64 columns fill a
  // multiprocessor's shared memory exactly (K = 4096, N = 11008, bf16, one row: 22.5 us and not 29).
  static constexpr int kPadded = rows * columns + kMaxBlocks * 31;
  static constexpr int kSharedBytes = kPadded * 4 + 8;
  __device__ __forceinline__ PartialSums(void* shared, int m_end, int blocks, int of_block, int rank)
      : gathered_(static_cast<float*>(shared)),
        blocks_(blocks),
        rank_(rank),
        elements_(m_end * columns),
        of_block_(of_block) {}

  // Before anything else: lets the cluster's other blocks send their sums.
  __device__ __forceinline__ void expect() const {
    if (blocks_ != 1) {
      if (threadIdx.x == 0) {
        make_mbarrier(mbarrier(), 1);
        fence_mbarriers();
        arrive_and_expect(mbarrier(), static_cast<uint32_t>(max(0, own_elements()) * blocks_ * 4));
      }
      __syncwarp();
      cluster_arrive_relaxed();
    }
  }

  // This thread's sums: of one column, kRowsApart rows apart from first_row() on and before row_end().
  static constexpr int kRowsApart = threads / columns;
  __device__ __forceinline__ int first_row() const {
    return (rank_ * of_block_ + static_cast<int>(threadIdx.x)) / columns;
  }
  __device__ __forceinline__ int column() const {
    return (rank_ * of_block_ + static_cast<int>(threadIdx.x)) % columns;
  }
  __device__ __forceinline__ int row_end() const {
    // The elements of this block end in the middle of a row, or with the last one.
    const int end = min((rank_ + 1) * of_block_, elements_);
    return end / columns + (column() < end % columns ? 1 : 0);
  }

  // `partial` is [groups][rows][stride] in shared memory, written and not yet waited for. All threads.
  __device__ __forceinline__ void add_up(float (&sums)[kSums], const float* partial,
                                         float of_block_reciprocal) const {
    __syncthreads();
    if (blocks_ == 1) {
      add_warps<1>(sums, partial);
      return;
    }
    float sent[ceil_div(kSums, width) * width];
    add_warps<width>(sent, partial);
    cluster_wait();  // all blocks have begun: their shared memory may be written
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kSums; i += width) {
      const int element = thread * width + i * threads;
      if (element < elements_) {
        const int owner = static_cast<int>((static_cast<float>(element) + 0.5f) * of_block_reciprocal);
        send(owner, gathered_ + rank_ * of_block_ + element - owner * of_block_, sent + i);
      }
    }
    wait_for_phase(mbarrier(), 0);
#pragma unroll
    for (float& sum : sums) {
      sum = 0.0f;
    }
    for (int block = 0; block < blocks_; ++block) {
#pragma unroll
      for (int i = 0; i < (kSums + 1) / 2; ++i) {  // a cluster has two blocks or more
        if (thread + i * threads < of_block_) {
          sums[i] += gathered_[block * of_block_ + thread + i * threads];
        }
      }
    }
  }

 private:
  // The sums of a block's warps: of every `threads`-th piece of `at_once` elements side by side.
  template <int at_once, int count>
  __device__ __forceinline__ void add_warps(float (&sums)[count], const float* partial) const {
#pragma unroll
    for (int i = 0; i < count; i += at_once) {
      // Of rows >= m_end too, which are nobody's; where a tile has less than `threads`, of its first again.
      const int element = (static_cast<int>(threadIdx.x) * at_once + i * threads) % (rows * columns);
      const float* at = partial + element / columns * stride + element % columns;
#pragma unroll
      for (int group = 0; group < groups; ++group) {
        float numbers[at_once];
        load_elements(numbers, at + group * rows * stride);
#pragma unroll
        for (int j = 0; j < at_once; ++j) {
          sums[i + j] = group == 0 ? numbers[j] : sums[i + j] + numbers[j];
        }
      }
    }
  }

  __device__ __forceinline__ void send(int owner, float* to, const float* numbers) const {
    const PeerShared peer = peer_shared(gathered_, static_cast<uint32_t>(owner));
    if constexpr (width == 4) {
      store_async(peer, to,
                  uint4{__float_as_uint(numbers[0]), __float_as_uint(numbers[1]), __float_as_uint(numbers[2]),
                        __float_as_uint(numbers[3])},
                  mbarrier());
    } else {
      store_async(peer, to, __float_as_uint(*numbers), mbarrier());
    }
  }

  __device__ __forceinline__ int own_elements() const {
    return min(of_block_, elements_ - rank_ * of_block_);
  }

  __device__ __forceinline__ uint64_t* mbarrier() const {
    return reinterpret_cast<uint64_t*>(gathered_ + kPadded);
  }

  float* gathered_;
  int blocks_, rank_, elements_, of_block_;
};

}  // namespace aten_ext::cuda
