// The masks of dropout between layers: cuDNN's own, drawn by cuDNN.
//
// Its recurrent layers draw from states that PyTorch keeps for it, and what they draw was seen to be what
// cudnnDropoutForward draws from the same states. So that is called, over numbers of which only those that
// are left matter, and the states move on as upstream's would. That it is so is asked, not assumed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>

#include "ops/rnn/problem.h"

struct cudnnContext;

namespace aten_ext::cuda {

// Why the masks of such layers cannot be drawn here; nullptr: they can, or nobody has asked yet.
const char* decline_dropout(c10::Device device, const RnnProblem& problem);

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <cuda_runtime_api.h>

namespace aten_ext::cuda {

// Whether they can. The first question about a device, dtype and number of directions runs a small layer
// stack of upstream's and waits for the GPU; false where that cannot be, because the stream is captured.
bool may_draw_dropout(c10::Device device, const RnnProblem& problem);

// The masks of one call, each over [rows, columns], on the current device and stream.
class CudnnDropout {
 public:
  // `states`: bytes, which move on with each mask.
  CudnnDropout(double p, const at::Tensor& states, int64_t rows, int64_t columns);
  ~CudnnDropout();
  CudnnDropout(const CudnnDropout&) = delete;
  CudnnDropout& operator=(const CudnnDropout&) = delete;

  // False: cuDNN's functions are out of reach, or it does not take these states.
  bool is_ready() const {
    return handle_ != nullptr;
  }
  bool has_drawn() const {
    return has_drawn_;
  }
  // Of the memory that draw() writes to.
  int64_t bytes() const;
  // Writes fp16 [rows, columns], positive where an element is kept and else not. False: cuDNN did not.
  bool draw(void* to, cudaStream_t stream);

 private:
  cudnnContext* handle_ = nullptr;
  void* numbers_ = nullptr;  // descriptors
  void* dropout_ = nullptr;
  int64_t count_;
  size_t reserve_bytes_ = 0;  // which cuDNN wants for a backward of its own
  bool has_drawn_ = false;
};

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
