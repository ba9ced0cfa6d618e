// Bridge between the ATen side of a GRU layer (cudnn_rnn.cpp) and its kernels (cudnn_rnn.cu). No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aten_ext::cuda {

enum class RecurrenceDtype : uint8_t { Float, Half, BFloat16 };

// How products with W_hh are made: fp32 multiply-adds; tensor cores in 16 bits; tensor cores in TF32 (fp32
// tensors).
enum class RecurrenceMath : uint8_t { Fma, Mma, MmaTf32 };

// Which blocks share a state, and through what: see device/gru_exchange.cuh.
enum class RecurrenceExchange : uint8_t { Block, Cluster, Grid };

// One direction of a layer.
struct RecurrenceDirection {
  const void* w_hh;    // [3 * hidden, hidden], contiguous: reset, update, new
  const void* b_ih;    // [3 * hidden] or nullptr
  const void* b_hh;    // [3 * hidden], nullptr if b_ih is
  const float* gates;  // W_ih * input, [steps, batch, 3 * hidden], without biases
  const void* h0;      // [batch, hidden], contiguous
  void* hy;            // [batch, hidden], contiguous
  void* y;             // [steps, batch, hidden]
};

struct RecurrenceParams {
  RecurrenceDirection direction[2];  // the second runs backwards in time
  int directions;
  RecurrenceDtype dtype;
  int64_t steps;                // > 0
  int batch;                    // > 0
  int hidden;                   // > 0
  int64_t gate_step, gate_row;  // strides in elements; the last dimension is contiguous
  int64_t y_step, y_row;
  RecurrenceMath math;
  RecurrenceExchange exchange;
  int blocks;  // that share the state of a group
  int rows;    // of the batch in a group
  // For RecurrenceExchange::Grid:
  uint64_t* words;  // exchange_words() of them, zero
};

// How many words of 64 bits a launch with these parameters exchanges its states through; 0 if through none.
int64_t exchange_words(const RecurrenceParams& params);

// What the policy has to know of a GPU.
struct RecurrenceDevice {
  int multiprocessors;
  int compute_major;
  // Clusters of 4, 8 and 16 blocks that run at once, each block with an SM to itself; 0 where there are none.
  int clusters[3];
};

// Of the current device, which runs code compiled for `code_major`.x: it may be older than the device, and
// clusters are a trap in it. Asks the driver, so its caller keeps the answer.
cudaError_t query_recurrence_device(int code_major, RecurrenceDevice& device);

// Whether the current device takes the launch of these parameters (pointers are not looked at): there is a
// kernel, and the blocks of a group run at the same time. Asks the driver, so its caller keeps the answer.
cudaError_t query_recurrence_launch(const RecurrenceParams& params, bool& fits);

// All steps of one layer, both directions, in one launch.
cudaError_t launch_recurrence(const RecurrenceParams& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
