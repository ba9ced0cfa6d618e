// Bridge between the ATen side of a recurrent layer (cudnn_rnn.cpp) and the kernels that pad a packed
// sequence (packed_sequence.cu). No ATen here.
//
// The kernels of a recurrence compute a padded sequence, [steps, batch, features]. A row takes part in as
// many steps of a direction as it is long, and these are the first ones that the direction computes: forward
// from time 0 on, in reverse from the last time down. So each row begins with its own state. What is computed
// of it afterwards nobody reads: y and hy are picked from its own steps, and an LSTM's cell state is held.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/pieces.h"

namespace aten_ext::cuda {

// In the device's memory.
struct PackedRows {
  const int* first_row;  // [steps]: rows of the packed sequence before those of a time
  const int* length;     // [batch], descending
  int steps;
  int batch;
};

// Some steps of each direction, of the first rows of the batch. What is padded has [steps, batch] rows.
struct PackedSteps {
  int first[2];  // by direction: the first in time
  int steps;
  int batch;
};

inline PackedSteps packed_steps(const PackedRows& rows, const Piece& piece) {
  const auto first = static_cast<int>(piece.first);
  const auto steps = static_cast<int>(piece.steps);
  return {{first, rows.steps - first - steps}, steps, static_cast<int>(piece.batch)};
}

// Writes `count` numbers to the device's memory. They travel in the arguments of launches: nothing is
// awaited, and a graph keeps them.
cudaError_t launch_write(const int* numbers, int64_t count, int* to, cudaStream_t stream);

// Packed rows of `features` elements, x_row apart, to [steps, batch, features], zero where there is none: of
// each direction, whose results are `apart` elements from one another.
struct PadRows {
  const void* x[2];  // by direction
  int64_t x_row;
  void* padded;
  int64_t apart;
  int64_t features;
  int element_bytes;
  int directions;
  PackedSteps of;
};
cudaError_t launch_pad(const PackedRows& rows, const PadRows& pad, cudaStream_t stream);

// What a layer computed in some steps of each direction, [steps, batch, directions * hidden], to packed rows
// of y, and the states at each row's own last step, if it is one of these, to hy [directions, rows of the
// whole batch, hidden].
struct PackOutput {
  const void* padded;
  void* y;
  void* hy;
  int64_t hidden;
  int element_bytes;
  int directions;
  PackedSteps of;
};
cudaError_t launch_pack(const PackedRows& rows, const PackOutput& pack, cudaStream_t stream);

// Lets an LSTM keep its cell state where a row takes no part: of the projections [steps, batch, 4 * hidden]
// the forget gate's become so large and the input gate's so small that these gates are 1 and 0 exactly.
struct HoldRows {
  float* projection[2];  // by direction
  int64_t hidden;
  int directions;
  PackedSteps of;
};
cudaError_t launch_hold(const PackedRows& rows, const HoldRows& hold, cudaStream_t stream);

}  // namespace aten_ext::cuda
