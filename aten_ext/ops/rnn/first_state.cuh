// The state before the first step: h0 into a block's shared memory, and what a cell carries beside h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "device/async_copy.cuh"
#include "device/vector.cuh"
#include "ops/rnn/arguments.cuh"

namespace aten_ext::cuda {

// h0, contiguous rows of `hidden`, into rows of `stride` of the first of two buffers of `size` (a multiple of
// 16 bytes). Everything else becomes zero, also where no unit ever writes: the weights there are zero, and
// zero times NaN is not. All threads of the block; to be followed by a __syncthreads.
template <typename Operand, typename T, typename Convert>
__device__ __forceinline__ void load_first_state(Operand* buffers, int size, int stride, const T* h0,
                                                 int rows, int hidden, int thread, const Convert& convert) {
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

// The same for an operand as large as T, in two parts, so that other loads can be issued in between. The
// first issues the loads of h0: row by row, a warp a row, into the first buffer, as a group of asynchronous
// copies.
template <typename Operand, typename T>
__device__ __forceinline__ void issue_first_state(Operand* buffer, int stride, const T* h0, int rows,
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

// The second, once `later` groups of copies have followed. It waits, lets `convert` make operands of each
// vector in place unless they are operands already, and puts zeros beyond the last column of both buffers'
// rows, as above. Rows beyond the last keep what shared memory held: a product's result for a row depends on
// that row alone, and theirs are not stored. To be followed by a __syncthreads.
template <int later, bool are_operands, typename Operand, typename Convert>
__device__ __forceinline__ void complete_first_state(Operand* buffers, int size, int stride, int rows,
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

// One element of the state before the first step, in fp32. T is the dtype of the tensors.
template <typename T>
__device__ __forceinline__ float load_first_value(const RnnDirectionArguments& d, int64_t at) {
  if constexpr (sizeof(T) < sizeof(float)) {
    if (d.h0_fp32 != nullptr) {
      return d.h0_fp32[at];
    }
  }
  return to_op(static_cast<const T*>(d.h0)[at]);
}

// Whether the state after the last step is wanted in fp32 too.
template <typename T>
__device__ __forceinline__ bool wants_fp32_state(const RnnDirectionArguments& d) {
  return sizeof(T) < sizeof(float) && d.hy_fp32 != nullptr;
}

// Where a unit of a row has its element in c0 and cy.
__device__ __forceinline__ int64_t carried_at(const RnnArguments& a, const RnnPlace& place, int row,
                                              int unit) {
  return static_cast<int64_t>(place.first_row + row) * a.hidden + unit;
}

// What a unit of a row carries beside h (kStates <= 1: the LSTM's c). T is the dtype of the tensors.
template <typename Cell, typename T>
__device__ __forceinline__ typename Cell::State load_carried(const RnnArguments& a, const RnnPlace& place,
                                                             int row, int unit, bool exists) {
  typename Cell::State state;
  if constexpr (Cell::kStates > 0) {
    const int64_t at = carried_at(a, place, row, unit);
    const auto* const c0 = static_cast<const T*>(a.c0[place.direction]);
    const float* const c0_fp32 = a.c0_fp32[place.direction];
    state.value[0] = 0.0f;
    if (sizeof(T) < sizeof(float) && c0_fp32 != nullptr) {
      state.value[0] = exists ? c0_fp32[at] : 0.0f;
    } else if (exists && c0 != nullptr) {
      state.value[0] = to_op(c0[at]);
    }
  }
  return state;
}

template <typename Cell, typename T>
__device__ __forceinline__ void store_carried(const RnnArguments& a, const RnnPlace& place, int row, int unit,
                                              const typename Cell::State& state) {
  if constexpr (Cell::kStates > 0) {
    const int64_t at = carried_at(a, place, row, unit);
    static_cast<T*>(a.cy[place.direction])[at] = from_op<T>(state.value[0]);
    if (sizeof(T) < sizeof(float) && a.cy_fp32[place.direction] != nullptr) {
      a.cy_fp32[place.direction][at] = state.value[0];
    }
  }
}

// Between a register and shared memory, of a lane that finishes several rows. `to` and `from` are the
// thread's own.
template <typename Cell>
__device__ __forceinline__ void keep_carried(float* to, const typename Cell::State& state) {
  if constexpr (Cell::kStates > 0) {
    *to = state.value[0];
  }
}
template <typename Cell>
__device__ __forceinline__ void fetch_carried(typename Cell::State& state, const float* from) {
  if constexpr (Cell::kStates > 0) {
    state.value[0] = *from;
  }
}

}  // namespace aten_ext::cuda
