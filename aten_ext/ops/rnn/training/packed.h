// Bridge to the kernels that a backward of a packed sequence adds (packed.cu). No ATen here.
//
// The sequential part knows padded sequences alone, as that of the forward does (ops/rnn/packed_sequence.h).
// A row's steps are the first that a direction computes, so the backward comes to it through steps where it
// has none: there no gate has a gradient, and those of the states are passed on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "ops/rnn/packed_sequence.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// Packed rows [rows, directions * H] to [steps, batch, directions * H], each direction from a row's own first
// step on and zero where there is none. `at_end` [directions, rows of the whole batch, H] is added at each
// row's own last step. Either may be nullptr: zero.
struct UnpackRows {
  const void* packed;
  const void* at_end;
  void* padded;
};
// Several at once.
constexpr int kMostUnpacked = 2;
cudaError_t launch_unpack(const PackedRows& rows, const PackedSteps& of,
                          const UnpackRows (&unpack)[kMostUnpacked], int count, int64_t hidden,
                          int directions, Dtype dtype, cudaStream_t stream);

// [steps, batch, width] of a direction, or as many columns of what is wider, to packed rows [rows, width].
struct PackRows {
  const void* padded;
  void* packed;
  int64_t width;
  int64_t padded_width;
  int direction;
};
// Several at once: of two directions gradients of gates, of a GRU two kinds.
constexpr int kMostPacked = 4;
cudaError_t launch_pack_rows(const PackedRows& rows, const PackedSteps& of,
                             const PackRows (&pack)[kMostPacked], int count, Dtype dtype,
                             cudaStream_t stream);

// The states before steps: what a layer put out, one step of the direction earlier, or its initial state.
struct PackedPreviousStates {
  const void* y;   // packed rows [rows, directions * H]
  const void* h0;  // [directions, rows of the whole batch, H]
  void* to[2];     // by direction: packed rows [rows, H], or [steps, batch, H] and zero where there is no row
  bool padded;
  int64_t hidden;
  int directions;
  bool overlaps;  // with the launch before it, which writes nothing of these
};
cudaError_t launch_packed_previous_states(const PackedRows& rows, const PackedSteps& of,
                                          const PackedPreviousStates& previous, Dtype dtype,
                                          cudaStream_t stream);

// Coefficients [steps, batch, coefficients, H]: where there is no row, those that pass the gradients of the
// states on and give the gates none. In fp32 where dtype is Float, else as a forward saves them
// (ops/rnn/backward/saved.cuh).
struct PassRows {
  void* coefficients[2];  // by direction
  int64_t hidden;
  int directions;
  PackedSteps of;
};
cudaError_t launch_pass_coefficients(const PackedRows& rows, const PassRows& pass, Dtype dtype, Cell cell,
                                     cudaStream_t stream);

}  // namespace aten_ext::cuda
