// What the kernels that pad ask of a packed sequence, written to the device's memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "ops/rnn/packed_sequence.h"
#include "ops/rnn/sequence.h"

namespace aten_ext::cuda {

struct PackedMetadata {
  at::Tensor numbers;
  PackedRows rows{};
  cudaError_t error = cudaSuccess;

  PackedMetadata(const Sequence& sequence, const at::TensorOptions& options, cudaStream_t stream) {
    std::vector<int> values;
    values.reserve(sequence.steps + sequence.batch);
    int row = 0;
    for (int64_t time = 0; time < sequence.steps; ++time) {
      values.push_back(row);
      row += static_cast<int>(sequence.batch_sizes[time]);
    }
    values.resize(sequence.steps + sequence.batch);
    int64_t length = sequence.steps;
    for (int64_t i = 0; i < sequence.batch; ++i) {
      while (sequence.batch_sizes[length - 1] <= i) {
        --length;
      }
      values[sequence.steps + i] = static_cast<int>(length);
    }
    numbers = at::empty({static_cast<int64_t>(values.size())}, options.dtype(at::kInt));
    int* const to = numbers.mutable_data_ptr<int>();
    rows = {to, to + sequence.steps, static_cast<int>(sequence.steps), static_cast<int>(sequence.batch)};
    error = launch_write(values.data(), static_cast<int64_t>(values.size()), to, stream);
  }
};

}  // namespace aten_ext::cuda
