// A product of each direction of a layer, as one batch where the distances between their operands allow it.
// No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/lt_product.h"

namespace aten_ext::cuda {

struct Operands {
  const void* rows[2];
  const void* w[2];
  void* to[2];
};

// `product`: without operands and batch. `apart`: no batch, whose members cuBLASLt does not split into parts.
// False: cuBLASLt does not take it.
bool run_products(LtProduct product, const Operands& operands, int directions, bool apart,
                  cudaStream_t stream);

}  // namespace aten_ext::cuda
