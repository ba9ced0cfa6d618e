// _foreach_add_.Scalar on CUDA, for an optimizer's step counters: when, and over what.
//
// The decline rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include "foreach_add_args.h"
#include "overrides.h"

namespace aten_ext {

const char* decline::_foreach_add__Scalar_cuda(at::TensorList self, const at::Scalar& scalar) {
  return decline_foreach_add(self, scalar);
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "cuda/foreach_add.h"

namespace aten_ext {

void run::_foreach_add__Scalar_cuda(at::TensorList self, const at::Scalar& scalar) {
  const c10::cuda::CUDAGuard guard(self[0].device());
  std::vector<float*> numbers;
  numbers.reserve(self.size());
  for (const at::Tensor& t : self) {
    numbers.push_back(t.mutable_data_ptr<float>());
  }
  cuda::ForeachAddParams p{};
  p.numbers = numbers.data();
  p.count = static_cast<int64_t>(numbers.size());
  p.value =
      scalar.isFloatingPoint() ? static_cast<float>(scalar.toDouble()) : static_cast<float>(scalar.toLong());
  C10_CUDA_CHECK(cuda::launch_foreach_add(p, c10::cuda::getCurrentCUDAStream()));
  for (const at::Tensor& t : self) {
    t.unsafeGetTensorImpl()->bump_version();  // as upstream's kernel does: see cpu/foreach_add.cpp
  }
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
