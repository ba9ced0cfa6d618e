// Bridge to the kernels of dropout between two layers (dropout.cu). No ATen here.
//
// Which elements are kept cuDNN draws (cudnn_dropout.h). It is remembered as bits: element i is bit i % 8 of
// byte i / 8. What is dropped is 0 whatever it was, an infinity or NaN too.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"

namespace aten_ext::cuda {

// Elements of a byte of bits.
constexpr int kKeptOfByte = 8;

// By which what is kept is multiplied, as cuDNN counts.
inline float scale_of_kept(double p) {
  return 1.0f / (1.0f - static_cast<float>(p));
}

// to = kept ? from * scale : 0, in fp32, rounded once.
struct Drop {
  const void* from;  // of the dtype
  void* to;          // may be `from`
  int64_t count;
  float scale;
  Dtype dtype;
};

// By the bits of an earlier one.
cudaError_t launch_drop(const Drop& params, const uint8_t* kept, cudaStream_t stream);

// By what cuDNN left of positive numbers, in fp16: what is not positive is dropped. Writes the bits. `left`
// is at a multiple of 16, and whole vectors of 16 bytes of it may be read.
cudaError_t launch_first_drop(const Drop& params, const void* left, uint8_t* kept, cudaStream_t stream);

// The gradient of what both directions read, each with a mask of its own: the sum of both, rounded once.
struct DropSum {
  const float* from[2];  // may be `to`
  const uint8_t* kept[2];
  void* to;  // of the dtype
  int64_t count;
  float scale;
  Dtype dtype;
};
cudaError_t launch_drop_sum(const DropSum& params, cudaStream_t stream);

}  // namespace aten_ext::cuda
