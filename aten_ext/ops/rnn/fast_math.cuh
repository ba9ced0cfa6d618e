// The special functions of the hardware, one instruction each (ptx "ex2.approx", "rcp.approx": relative error
// about 2^-22 and 2^-23; results too small for a normal number are zero).
#pragma once

#include <cuda_runtime.h>

namespace aten_ext::cuda {

__device__ __forceinline__ float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace aten_ext::cuda
