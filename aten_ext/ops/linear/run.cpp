// addmm, mm and _addmm_activation on CUDA: what a plan says is done. Decides nothing.
#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "core/launch.h"
#include "ops/linear/call.h"
#include "ops/linear/few_rows.h"
#include "ops/linear/overrides.h"
#include "ops/linear/run_lt.h"

namespace aten_ext {
namespace {

using cuda::FewRowsPlan;
using cuda::LinearParams;
using cuda::LinearPlan;
using cuda::LtPlan;

// The stride of `bias` along a dimension counted from the last (0) when it is broadcast to the result.
int64_t broadcast_stride(const at::Tensor& bias, int64_t from_last) {
  const int64_t dimension = bias.dim() - 1 - from_last;
  return dimension < 0 || bias.size(dimension) == 1 ? 0 : bias.stride(dimension);
}

// Of an only row it may be anything, and the kernel counts on aligned addresses of rows that do not exist.
int64_t row_stride(const at::Tensor& t, int64_t row) {
  return t.size(row) == 1 ? 0 : t.stride(row);
}

// Lets cuBLAS set itself up, once for each thread and device. It cannot while a stream is captured, and
// upstream would have by a call like this one.
void set_up_blas(c10::DeviceIndex device) {
  constexpr size_t kDevices = 64;
  static thread_local std::bitset<kDevices> done;
  const auto place = static_cast<size_t>(device) % kDevices;
  if (done[place]) {
    return;
  }
  done.set(place);
  try {
    (void)at::cuda::getCurrentCUDABlasLtHandle();
  } catch (const c10::Error&) {
    // This call does without it; a capture's says what is wrong.
  }
}

// False: the device did not take the launch, and nothing was written.
bool run_few_rows(const LinearCall& call, const FewRowsPlan& plan, const at::Tensor& out) {
  const at::Tensor& mat1 = call.mat1;
  const at::Tensor& mat2 = call.mat2;
  if (plan.is_blas_in_graphs) {
    set_up_blas(mat1.device().index());
  }
  LinearParams p{};
  p.mat1 = mat1.const_data_ptr();
  p.mat2 = mat2.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.M = static_cast<int32_t>(call.m());
  p.N = static_cast<int32_t>(call.n());
  p.K = static_cast<int32_t>(call.k());
  p.mat2_is_transposed = plan.mat2_is_transposed;
  p.vectors = plan.vectors;
  p.mat1_stride = row_stride(mat1, 0);
  p.mat2_stride = row_stride(mat2, plan.mat2_is_transposed ? 1 : 0);
  p.out_stride = out.stride(0);
  // With beta = 0 the bias is not read: it may be NaN.
  if (call.bias != nullptr && plan.beta != 0) {
    p.bias = call.bias->const_data_ptr();
    p.bias_stride_m = broadcast_stride(*call.bias, 1);
    p.bias_stride_n = broadcast_stride(*call.bias, 0);
  }
  p.alpha = plan.alpha;
  p.beta = plan.beta;
  p.dtype = plan.dtype;
  p.epilogue = plan.epilogue;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const cudaError_t error = plan.dots.rows != 0 ? cuda::launch_few_rows(p, plan.dots, stream)
                                                : cuda::launch_few_rows(p, plan.tiles, stream);
  if (cuda::is_refusal(error)) {
    return false;
  }
  C10_CUDA_CHECK(error);
  return true;
}

bool run_linear(const LinearCall& call, const LinearPlan& plan, const at::Tensor& out) {
  const auto* lt = std::get_if<LtPlan>(&plan.way);
  return lt != nullptr ? run_lt(call, lt->key, lt->alpha, out)
                       : run_few_rows(call, std::get<FewRowsPlan>(plan.way), out);
}

template <class Args>
Ran<at::Tensor> run_functional(const Args& arguments, const LinearPlan& plan) {
  const LinearCall call = call_of(arguments);
  const c10::cuda::CUDAGuard guard(call.mat1.device());
  at::Tensor out(at::detail::empty_cuda({call.m(), call.n()}, call.mat1.scalar_type(), call.mat1.device(),
                                        std::nullopt));
  return run_linear(call, plan, out) ? Ran<at::Tensor>(std::move(out)) : kRefused;
}

template <class Args>
Ran<at::Tensor&> run_into(const Args& arguments, const LinearPlan& plan) {
  const LinearCall call = call_of(arguments);
  const c10::cuda::CUDAGuard guard(call.mat1.device());
  return run_linear(call, plan, arguments.out) ? Ran<at::Tensor&>(arguments.out) : kRefused;
}

}  // namespace

Ran<at::Tensor> cuda::run(const args::addmm& a, const LinearPlan& plan) {
  return run_functional(a, plan);
}
Ran<at::Tensor&> cuda::run(const args::addmm_out& a, const LinearPlan& plan) {
  return run_into(a, plan);
}
Ran<at::Tensor> cuda::run(const args::_addmm_activation& a, const LinearPlan& plan) {
  return run_functional(a, plan);
}
Ran<at::Tensor&> cuda::run(const args::_addmm_activation_out& a, const LinearPlan& plan) {
  return run_into(a, plan);
}
Ran<at::Tensor> cuda::run(const args::mm& a, const LinearPlan& plan) {
  return run_functional(a, plan);
}
Ran<at::Tensor&> cuda::run(const args::mm_out& a, const LinearPlan& plan) {
  return run_into(a, plan);
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
