// How the blocks of a cluster hand the hidden state round between steps.
//
// Each block has the whole state in its shared memory, twice: that of this step, and that of the next, which
// is being written. It writes its own slice with plain stores and, after a __syncthreads, sends it to the
// others as asynchronous stores that count their bytes on the receiver's barrier: data and signal travel
// together, and a step waits for nothing but the arrival of what it reads.
//
// Two buffers are enough. A block sends the state of step t + 1 when it has all of step t, so also the slice
// of each receiver, which that one sent after all its threads had read step t - 1, whose buffer is
// overwritten. For the same reason a barrier is never a phase behind: no byte of a buffer's next phase comes
// before every block has passed this one.
//
// A warp sends to one block at a time, neighbouring lanes neighbouring 16 bytes: those go as one packet.
// Measured on an H200, 128 bytes a block, one exchange with its barrier: 409 cycles in a cluster of 2, 450
// (4), 490 (8), 580 (16); with each lane writing to another block 453, 508, 627, 773. A copy by the bulk
// engine takes 424, 524, 725, 1120 (one instruction a receiver, and they follow each other) and is faster
// only from about 1 KB a block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

// What a thread knows of its block's slice: rows of vectors of 16 bytes.
struct GruSlice {
  int vectors;      // of all rows
  int row_vectors;  // of a row
  int row_bytes;    // from a row to the next
  // The thread's first vector, and the way to the one 32 further.
  int first_column, first_bytes;
  int step_column, step_bytes;
};

// threadIdx.x, which is read once: a special register takes long, and left alone, the compiler reads it again
// wherever registers are few.
__device__ __forceinline__ int kept_thread_index() {
  const int thread = static_cast<int>(threadIdx.x);
  return __shfl_sync(0xffffffff, thread, thread % 32);
}

__device__ __forceinline__ GruSlice gru_slice(int thread, int rows, int row_vectors, int row_bytes) {
  const int lane = thread % 32;
  GruSlice slice;
  slice.vectors = rows * row_vectors;
  slice.row_vectors = row_vectors;
  slice.row_bytes = row_bytes;
  slice.first_column = lane % row_vectors;
  slice.first_bytes = lane / row_vectors * row_bytes + slice.first_column * 16;
  slice.step_column = 32 % row_vectors;
  slice.step_bytes = 32 / row_vectors * row_bytes + slice.step_column * 16;
  return slice;
}

// Makes the barriers of both buffers, each of which waits for `bytes` of state from the other blocks. One
// thread of the block, before any block sends.
__device__ __forceinline__ void gru_expect_first_states(uint64_t* arrived, uint32_t bytes) {
  for (int i = 0; i < 2; ++i) {
    make_mbarrier(arrived + i, 1);
  }
  fence_mbarriers();
  for (int i = 0; i < 2; ++i) {
    arrive_and_expect(arrived + i, bytes);
  }
}

// The state before the first step: h0, contiguous rows of `hidden`, into rows of `stride` of the first of two
// buffers of `size` (a multiple of 16 bytes); zero elsewhere, also where no unit ever writes: the weights
// there are zero, and zero times NaN is not. All threads of the block; to be followed by a __syncthreads.
template <typename Operand, typename T, typename Convert>
__device__ __forceinline__ void gru_first_state(Operand* buffers, int size, int stride, const T* h0, int rows,
                                                int hidden, int thread, const Convert& convert) {
  constexpr int kAtOnce = 8;  // loads under way
  const int threads = static_cast<int>(blockDim.x);
  auto* const vectors = reinterpret_cast<uint4*>(buffers);
  for (int i = thread; i < 2 * size * static_cast<int>(sizeof(Operand)) / 16; i += threads) {
    vectors[i] = uint4{0, 0, 0, 0};
  }
  __syncthreads();
  for (int first = thread; first < rows * hidden; first += kAtOnce * threads) {
    T values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      values[i] = h0[min(first + i * threads, rows * hidden - 1)];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * threads;
      if (at < rows * hidden) {
        buffers[at / hidden * stride + at % hidden] = convert(values[i]);
      }
    }
  }
}

// The same for an operand as large as T, in two parts between which other loads may be asked for. The first
// sends for h0: row by row, a warp a row, into the first buffer, as a group of asynchronous copies.
template <typename Operand, typename T>
__device__ __forceinline__ void gru_ask_for_first_state(Operand* buffer, int stride, const T* h0, int rows,
                                                        int hidden, int thread) {
  static_assert(sizeof(Operand) == sizeof(T));
  constexpr int kVector = 16 / sizeof(T);
  const int warps = static_cast<int>(blockDim.x) / 32;
  if (hidden % kVector == 0 && is_vector_aligned(h0)) {
    for (int row = thread / 32; row < rows; row += warps) {
      for (int column = thread % 32 * kVector; column < hidden; column += 32 * kVector) {
        copy_async_16(buffer + row * stride + column, h0 + static_cast<int64_t>(row) * hidden + column);
      }
    }
  } else {
    for (int row = thread / 32; row < rows; row += warps) {
#pragma unroll 8
      for (int column = thread % 32; column < hidden; column += 32) {
        memcpy(buffer + row * stride + column, h0 + static_cast<int64_t>(row) * hidden + column, sizeof(T));
      }
    }
  }
  commit_async_copies();
}

// The second, when `later` groups of copies have followed: waits, lets `convert` make operands of each vector
// in place unless they are ones already, and puts zeros beyond the last column of both buffers' rows, where
// no unit ever writes: the weights there are zero, and zero times NaN is not. Rows beyond the last keep what
// they have, which reaches no other row. To be followed by a __syncthreads.
template <int later, bool are_operands, typename Operand, typename Convert>
__device__ __forceinline__ void gru_take_first_state(Operand* buffers, int size, int stride, int rows,
                                                     int hidden, int thread, const Convert& convert) {
  constexpr int kVector = 16 / sizeof(Operand);
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int row = thread / 32; row < rows; row += warps) {
    for (int column = hidden + thread % 32; column < stride; column += 32) {
      buffers[row * stride + column] = Operand{};
      buffers[size + row * stride + column] = Operand{};
    }
  }
  wait_async_copies<later>();
  if constexpr (!are_operands) {
    __syncwarp();
    for (int row = thread / 32; row < rows; row += warps) {
      for (int column = thread % 32 * kVector; column < hidden; column += 32 * kVector) {
        convert(*reinterpret_cast<uint4*>(buffers + row * stride + column));
      }
    }
  }
}

// Sends the slice at `own` to the same place in the other blocks of the cluster and counts it on their
// `mbarrier`. All threads of the block, after a __syncthreads.
template <int kBlocks>
__device__ __forceinline__ void gru_send(const GruSlice& slice, void* own, int thread, int rank,
                                         uint64_t* mbarrier) {
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  int column = slice.first_column;
  char* at = static_cast<char*>(own) + slice.first_bytes;
#pragma unroll 1
  for (int i = lane; i < slice.vectors; i += 32) {
    const uint4 vector = *reinterpret_cast<const uint4*>(at);
#pragma unroll 2
    for (int to = warp; to < kBlocks; to += warps) {
      if (to != rank) {
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

}  // namespace aten_ext::cuda
