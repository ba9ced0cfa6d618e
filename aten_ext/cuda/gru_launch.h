// Between the files that choose among the kernels of a GRU layer's recurrence. No ATen here.
#pragma once

#include <cstddef>

#include "cuda/cudnn_rnn.h"

namespace aten_ext::cuda {

struct GruArguments;

// A kernel and how it is launched, but for what every launch has.
struct Launch {
  void (*kernel)(GruArguments) = nullptr;  // nullptr: none fits
  int units = 0;                           // of a block
  int threads = 0;
  int shared_vectors = 0;
  size_t shared_bytes = 0;
};

// RecurrenceExchange::Block and ::Cluster.
Launch choose_cluster(const RecurrenceParams& params);

}  // namespace aten_ext::cuda
