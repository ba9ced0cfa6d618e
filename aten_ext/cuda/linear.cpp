// addmm, mm and _addmm_activation on CUDA, with their out= overloads: the kernel for few rows (linear.cu),
// and for the rest cuBLASLt with a plan that is remembered (linear_lt.cpp).
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>

#include "cuda/linear_rule.h"
#include "gpu_support.h"
#include "linear_args.h"
#include "overrides.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cuda/tunable/Tunable.h>
#include <ATen/ops/_addmm_activation_cuda_dispatch.h>
#include <ATen/ops/addmm_cuda_dispatch.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/linear.h"
#endif

namespace aten_ext {
namespace {

// The most rows of mat1 that the kernel takes.
constexpr int64_t kMostRows = 64;

bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// Whether a step of so many elements keeps an aligned address aligned.
bool keeps_aligned(const at::Tensor& t, int64_t elements) {
  return elements * static_cast<int64_t>(t.element_size()) % 16 == 0;
}

// Rows of [rows, columns]: elements side by side, each row on an aligned address.
bool has_aligned_rows(const at::Tensor& t, int64_t row, int64_t column) {
  return (t.size(column) == 1 || t.stride(column) == 1) &&
         (t.size(row) == 1 || (t.stride(row) >= t.size(column) && keeps_aligned(t, t.stride(row)))) &&
         keeps_aligned(t, t.size(column)) && is_aligned(t);
}

// mat2 [K, N] as nn.Linear gives it: the transposed view of [N, K].
bool is_transposed(const at::Tensor& mat2) {
  return has_aligned_rows(mat2, 1, 0);
}

// What the kernel for few rows does not take.
const char* decline_few_rows(const LinearCall& call) {
  if (call.m() > kMostRows) {
    return "more than 64 rows";
  }
  if (!has_aligned_rows(call.mat1, 0, 1)) {
    return "mat1 whose rows are not contiguous in multiples of 16 bytes";
  }
  if (!is_transposed(call.mat2) && !has_aligned_rows(call.mat2, 0, 1)) {
    return "mat2 that is neither rows nor columns contiguous in multiples of 16 bytes";
  }
  if (call.out != nullptr &&
      ((call.n() > 1 && call.out->stride(1) != 1) || (call.m() > 1 && call.out->stride(0) < call.n()))) {
    return "out whose rows are not contiguous";
  }
  const at::ScalarType dtype = call.mat1.scalar_type();
  if (dtype == at::kFloat) {
    const at::Float32Precision precision = float32_precision();
    const bool is_ieee = precision == at::Float32Precision::NONE || precision == at::Float32Precision::IEEE;
    return is_ieee ? nullptr : "float32 precision other than IEEE is allowed";
  }
  if (reduction_of(dtype) == at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK) {
    return "split K is not allowed";
  }
  return nullptr;
}

// Of what that kernel takes: where it was measured to be slower than upstream.
bool is_faster_upstream(const LinearCall& call) {
  return upstream_multiplies_faster(call.m(), call.n(), call.k(), call.mat1.scalar_type() == at::kFloat,
                                    is_transposed(call.mat2), call.bias != nullptr);
}

#ifdef ATEN_EXT_WITH_CUDA
const char* decline_machine(const at::Tensor& mat1) {
  if (at::cuda::tunable::getTuningContext()->IsTunableOpEnabled()) {
    return "TunableOp is on";
  }
  // A meta tensor asks about the GPU that the kernel was written for.
  if (mat1.is_cuda() && code_version(mat1.device()) < 90) {
    return "GPU, or code built for it, older than sm_90";
  }
  return nullptr;
}
#else
const char* decline_machine(const at::Tensor& /*mat1*/) {
  return nullptr;
}
#endif

const char* decline_linear(const LinearCall& call, const at::Scalar& beta, const at::Scalar& alpha) {
  const char* reason = decline_operands(call);
  if (reason != nullptr) {
    return reason;
  }
  if (!fits_float(beta) || !fits_float(alpha)) {
    return "alpha or beta that is no number of float32";
  }
  reason = decline_flags(call.mat1.scalar_type());
  reason = reason ? reason : decline_machine(call.mat1);
  if (reason != nullptr) {
    return reason;
  }
  const char* few_rows = decline_few_rows(call);
  if (few_rows == nullptr && is_faster_upstream(call)) {
    few_rows = "shape that upstream multiplies faster";
  }
  if (few_rows == nullptr) {
    return nullptr;
  }
  reason = decline_lt(call, beta);
  // Of two reasons, the one of the way that was meant for so many rows.
  return reason != nullptr && call.m() <= kMostRows ? few_rows : reason;
}

LinearEpilogue activation(bool use_gelu) {
  return use_gelu ? LinearEpilogue::GELU : LinearEpilogue::ReLU;
}

}  // namespace

const char* decline::addmm_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                const at::Scalar& beta, const at::Scalar& alpha) {
  return decline_linear({&self, mat1, mat2, nullptr, LinearEpilogue::None}, beta, alpha);
}

const char* decline::addmm_out_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                    const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return decline_linear({&self, mat1, mat2, &out, LinearEpilogue::None}, beta, alpha);
}

const char* decline::_addmm_activation_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                            const at::Tensor& mat2, const at::Scalar& beta,
                                            const at::Scalar& alpha, bool use_gelu) {
  return decline_linear({&self, mat1, mat2, nullptr, activation(use_gelu)}, beta, alpha);
}

const char* decline::_addmm_activation_out_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                                const at::Tensor& mat2, const at::Scalar& beta,
                                                const at::Scalar& alpha, bool use_gelu, at::Tensor& out) {
  return decline_linear({&self, mat1, mat2, &out, activation(use_gelu)}, beta, alpha);
}

const char* decline::mm_cuda(const at::Tensor& self, const at::Tensor& mat2) {
  return decline_linear({nullptr, self, mat2, nullptr, LinearEpilogue::None}, 0, 1);
}

const char* decline::mm_out_cuda(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return decline_linear({nullptr, self, mat2, &out, LinearEpilogue::None}, 0, 1);
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

namespace aten_ext {
namespace {

static_assert(kMostRows == cuda::kMostLinearRows);

using cuda::LinearActivation;
using cuda::LinearDtype;
using cuda::LinearParams;

LinearDtype to_linear_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return LinearDtype::BFloat16;
    case at::kHalf:
      return LinearDtype::Half;
    default:
      return LinearDtype::Float;  // decline() lets nothing else through
  }
}

LinearActivation to_activation(LinearEpilogue epilogue) {
  switch (epilogue) {
    case LinearEpilogue::ReLU:
      return LinearActivation::ReLU;
    case LinearEpilogue::GELU:
      return LinearActivation::GELU;
    default:
      return LinearActivation::None;
  }
}

// The stride of `bias` along a dimension counted from the last (0) when it is broadcast to the result.
int64_t broadcast_stride(const at::Tensor& bias, int64_t from_last) {
  const int64_t dimension = bias.dim() - 1 - from_last;
  return dimension < 0 || bias.size(dimension) == 1 ? 0 : bias.stride(dimension);
}

at::Tensor make_out(const at::Tensor& mat1, const at::Tensor& mat2) {
  return at::Tensor(
      at::detail::empty_cuda({mat1.size(0), mat2.size(1)}, mat1.scalar_type(), mat1.device(), std::nullopt));
}

void run_few_rows(const LinearCall& call, float beta, float alpha, const at::Tensor& out) {
  const at::Tensor& mat1 = call.mat1;
  const at::Tensor& mat2 = call.mat2;
  LinearParams p{};
  p.mat1 = mat1.const_data_ptr();
  p.mat2 = mat2.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.M = static_cast<int32_t>(call.m());
  p.N = static_cast<int32_t>(call.n());
  p.K = static_cast<int32_t>(call.k());
  p.mat2_is_transposed = is_transposed(mat2);
  p.mat1_stride = mat1.stride(0);
  p.mat2_stride = mat2.stride(p.mat2_is_transposed ? 1 : 0);
  p.out_stride = out.stride(0);
  // With beta = 0 the bias is not read: it may be NaN.
  if (call.bias != nullptr && beta != 0) {
    p.bias = call.bias->const_data_ptr();
    p.bias_stride_m = broadcast_stride(*call.bias, 1);
    p.bias_stride_n = broadcast_stride(*call.bias, 0);
  }
  p.alpha = alpha;
  p.beta = beta;
  p.dtype = to_linear_dtype(mat1.scalar_type());
  p.activation = to_activation(call.epilogue);
  const int multiprocessors = at::cuda::getDeviceProperties(mat1.device().index())->multiProcessorCount;
  C10_CUDA_CHECK(cuda::launch_linear(p, multiprocessors, c10::cuda::getCurrentCUDAStream()));
}

// cuBLASLt's refusal of its own heuristic's answer, which upstream meets with a warning and another kernel.
void run_upstream(const LinearCall& call, const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_WARN(
      "[addmm] expected cuBLASLt to take the algorithm that it chose, got an error: upstream runs instead");
  if (call.epilogue == LinearEpilogue::None) {
    at::cuda::addmm_out(out, *call.bias, call.mat1, call.mat2, beta, alpha);
  } else {
    at::cuda::_addmm_activation_out(out, *call.bias, call.mat1, call.mat2, beta, alpha,
                                    call.epilogue == LinearEpilogue::GELU);
  }
}

void run_linear(const LinearCall& call, const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (decline_few_rows(call) == nullptr && (!is_faster_upstream(call) || decline_lt(call, beta) != nullptr)) {
    run_few_rows(call, beta.toFloat(), alpha.toFloat(), out);
  } else if (!run_lt(call, alpha.toFloat(), out)) {
    run_upstream(call, beta, alpha, out);
  }
}

at::Tensor run_functional(const LinearCall& call, const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::cuda::CUDAGuard guard(call.mat1.device());
  at::Tensor out = make_out(call.mat1, call.mat2);
  run_linear(call, beta, alpha, out);
  return out;
}

at::Tensor& run_into(const LinearCall& call, const at::Scalar& beta, const at::Scalar& alpha,
                     at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(call.mat1.device());
  run_linear(call, beta, alpha, out);
  return out;
}

}  // namespace

at::Tensor run::addmm_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                           const at::Scalar& beta, const at::Scalar& alpha) {
  return run_functional({&self, mat1, mat2, nullptr, LinearEpilogue::None}, beta, alpha);
}

at::Tensor& run::addmm_out_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return run_into({&self, mat1, mat2, &out, LinearEpilogue::None}, beta, alpha, out);
}

at::Tensor run::_addmm_activation_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                       const at::Scalar& beta, const at::Scalar& alpha, bool use_gelu) {
  return run_functional({&self, mat1, mat2, nullptr, activation(use_gelu)}, beta, alpha);
}

at::Tensor& run::_addmm_activation_out_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                            const at::Tensor& mat2, const at::Scalar& beta,
                                            const at::Scalar& alpha, bool use_gelu, at::Tensor& out) {
  return run_into({&self, mat1, mat2, &out, activation(use_gelu)}, beta, alpha, out);
}

at::Tensor run::mm_cuda(const at::Tensor& self, const at::Tensor& mat2) {
  return run_functional({nullptr, self, mat2, nullptr, LinearEpilogue::None}, 0, 1);
}

at::Tensor& run::mm_out_cuda(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return run_into({nullptr, self, mat2, &out, LinearEpilogue::None}, 0, 1, out);
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
