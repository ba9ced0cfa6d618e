// The sequential part of a layer's backward: which kernel, in numbers. Plain arithmetic on sizes and a GPU.
// Standard library only.
#pragma once

#include <cstdint>
#include <string>

#include "core/choice.h"
#include "core/needs.h"
#include "ops/rnn/plan.h"

namespace aten_ext::cuda {

// What is asked for.
struct RecurrenceBackwardSizes {
  int64_t steps;  // of the launch: of a chunk, where a sequence is cut into some
  int64_t batch;
  int64_t hidden;
  int directions;
};

// One launch for all steps of a layer, both directions.
struct RecurrenceBackward {
  Math math;
  Exchange exchange;
  uint8_t shape;     // index into the list of shapes for this cell, math and exchange
  int blocks;        // that share the gradients of a group
  int rows;          // of the batch in a group
  int units;         // of a block
  int threads;       // of a block
  int shared_bytes;  // of a block
  int64_t grid;      // blocks of the launch
  int64_t words;     // of 64 bits, zero, that gradients are exchanged through; 0: none

  std::string describe() const;
  Needs needs() const;
};

// dtype: of the tensors. `tf32`: products of fp32 tensors may be in TF32. Or the reason why there is no
// kernel, or none that would be fast.
Choice<RecurrenceBackward> choose_recurrence_backward(const RecurrenceBackwardSizes& sizes, Cell cell,
                                                      Dtype dtype, bool tf32, const Gpu& gpu);

// Fills in what follows from math, exchange, blocks and rows: shape, units, threads, bytes, words. False:
// there is no such kernel.
bool choose_backward_kernel(const RecurrenceBackwardSizes& sizes, Cell cell, Dtype dtype,
                            RecurrenceBackward& plan);

}  // namespace aten_ext::cuda
