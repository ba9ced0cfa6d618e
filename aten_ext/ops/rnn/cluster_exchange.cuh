// How the blocks of a cluster hand the hidden state to each other between two steps.
//
// Each block has the whole state in its shared memory twice: that of this step, and that of the next, which
// is being written. It writes its own slice with plain stores. After a __syncthreads it sends the slice to
// the other blocks as asynchronous stores, which count their bytes on the receiver's barrier. Data and signal
// travel together, and a step waits for nothing but the arrival of what it reads.
//
// Two buffers are enough. A block sends the state of step t + 1 when it has all of step t, so it also has the
// slices that the receivers sent after all their threads had read step t - 1, whose buffer is overwritten.
// For the same reason a barrier is never a phase behind: no byte of a buffer's next phase arrives before
// every block has passed this one.
//
// A warp sends to one block at a time, and neighbouring lanes send neighbouring 16 bytes: those travel as one
// packet. Cycles of an exchange: docs/kernels/rnn.md.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/cluster.cuh"
#include "device/mbarrier.cuh"
#include "ops/rnn/arguments.cuh"

namespace aten_ext::cuda {

// threadIdx.x, read once. A special register takes long to read, and left alone, the compiler reads it again
// wherever registers are few.
__device__ __forceinline__ int kept_thread_index() {
  const int thread = static_cast<int>(threadIdx.x);
  return __shfl_sync(0xffffffff, thread, thread % 32);
}

// A block's slice as its threads see it: rows of vectors of 16 bytes.
struct BlockSlice {
  int vectors;      // of all rows
  int row_vectors;  // of a row
  int row_bytes;    // from a row to the next
  // The thread's first vector, and the way to the one 32 further.
  int first_column, first_bytes;
  int step_column, step_bytes;
};

__device__ __forceinline__ BlockSlice block_slice(int thread, int rows, int row_vectors, int row_bytes) {
  const int lane = thread % 32;
  BlockSlice slice;
  slice.vectors = rows * row_vectors;
  slice.row_vectors = row_vectors;
  slice.row_bytes = row_bytes;
  slice.first_column = lane % row_vectors;
  slice.first_bytes = lane / row_vectors * row_bytes + slice.first_column * 16;
  slice.step_column = 32 % row_vectors;
  slice.step_bytes = 32 / row_vectors * row_bytes + slice.step_column * 16;
  return slice;
}

// kValues of Operand travel for each unit and row.
template <int blocks, typename Operand, int kValues = 1>
class ClusterExchange {
 public:
  static constexpr int kBlocks = blocks;
  static constexpr bool kInCluster = blocks > 1;
  // Of shared memory, in front of the buffers.
  static constexpr int kBarriers = 2;

  // `arrived` [kBarriers] is in shared memory. All threads of the block.
  __device__ __forceinline__ ClusterExchange(uint64_t* arrived, const RnnPlace& place, int units, int thread)
      : arrived_(arrived),
        bytes_(place.rows * (kBlocks - 1) * units * kValues * sizeof(Operand)),
        rank_(place.rank),
        thread_(thread) {
    if constexpr (kInCluster) {
      if (thread == 0) {
        make_barriers();
      }
    }
  }

  // No block may write into another before that one has begun and filled its shared memory.
  __device__ __forceinline__ void start() const {
    if constexpr (kInCluster) {
      cluster_arrive();
      cluster_wait();
    }
  }

  // Until all of the step's state is in this block's buffer. The first step's is there from the start.
  __device__ __forceinline__ void wait(int step) const {
    if constexpr (kInCluster) {
      if (step > 0) {
        uint64_t* const mbarrier = arrived_ + step % 2;
        wait_for_phase(mbarrier, (step - 1) / 2 % 2);
        if (thread_ == 0) {  // the next phase: of step + 2
          arrive_and_expect(mbarrier, bytes_);
        }
      }
    }
  }

  // Sends this block's slice of a step's state, at `own`, to the same place in the other blocks. All threads
  // of the block, after a __syncthreads.
  __device__ __forceinline__ void send(const BlockSlice& slice, void* own, int step) const {
    if constexpr (kInCluster) {
      send_slice(slice, own, arrived_ + step % 2);
    }
  }

 private:
  // Both buffers' barriers expect their first state. One thread, before any block sends.
  __device__ __forceinline__ void make_barriers() const {
    for (int i = 0; i < kBarriers; ++i) {
      make_mbarrier(arrived_ + i, 1);
    }
    fence_mbarriers();
    for (int i = 0; i < kBarriers; ++i) {
      arrive_and_expect(arrived_ + i, bytes_);
    }
  }

  __device__ __forceinline__ void send_slice(const BlockSlice& slice, void* own, uint64_t* mbarrier) const {
    const int lane = thread_ % 32;
    const int warp = thread_ / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    int column = slice.first_column;
    char* at = static_cast<char*>(own) + slice.first_bytes;
#pragma unroll 1
    for (int i = lane; i < slice.vectors; i += 32) {
      const uint4 vector = *reinterpret_cast<const uint4*>(at);
#pragma unroll 2
      for (int to = warp; to < kBlocks; to += warps) {
        if (to != rank_) {
          store_async(peer_shared(mbarrier, static_cast<uint32_t>(to)), at, vector, mbarrier);
        }
      }
      column += slice.step_column;
      at += slice.step_bytes;
      if (column >= slice.row_vectors) {
        column -= slice.row_vectors;
        at += slice.row_bytes - 16 * slice.row_vectors;
      }
    }
  }

  uint64_t* arrived_;
  uint32_t bytes_;  // of a step, to this block
  int rank_;
  int thread_;
};

// A block that has all units sends to none and waits for none.
template <typename Operand>
using BlockExchange = ClusterExchange<1, Operand>;

}  // namespace aten_ext::cuda
