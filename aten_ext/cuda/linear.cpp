// addmm, mm and _addmm_activation on CUDA, with their out= overloads: when, and over what.
//
// The decline rules are compiled in a CPU build too: aten_ext.explain asks them about a GPU elsewhere.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "overrides.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/EmptyTensor.h>
#include <ATen/cuda/tunable/Tunable.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/linear.h"
#endif

namespace aten_ext {
namespace {

// The most rows of mat1 that the kernel takes.
constexpr int64_t kMostRows = 64;

// What the six overloads have in common. mm is addmm with no bias and beta = 0.
struct LinearCall {
  const at::Tensor* bias;  // nullptr: mm
  const at::Tensor& mat1;
  const at::Tensor& mat2;
  const at::Tensor* out;  // nullptr: to be made
};

// Dimensions with names, which later releases of torch do not have: the second is for those.
template <typename Tensor>
auto has_names(const Tensor& t, int /*preferred*/) -> decltype(t.has_names()) {
  return t.has_names();
}
template <typename Tensor>
bool has_names(const Tensor& /*t*/, long /*otherwise*/) {
  return false;
}

bool is_plain(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() && !has_names(t, 0);
}

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

bool broadcasts_to(const at::Tensor& bias, int64_t m, int64_t n) {
  const int64_t dims = bias.dim();
  return dims <= 2 && (dims < 1 || bias.size(dims - 1) == 1 || bias.size(dims - 1) == n) &&
         (dims < 2 || bias.size(0) == 1 || bias.size(0) == m);
}

// Upstream converts to float, which raises for what it cannot hold.
bool fits_float(const at::Scalar& scalar) {
  if (scalar.isComplex()) {
    return false;
  }
  const double value = scalar.toDouble();
  return !std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max();
}

// What upstream would raise an error about, and what the kernel cannot read.
const char* decline_operands(const LinearCall& call) {
  const at::Tensor& mat1 = call.mat1;
  const at::Tensor& mat2 = call.mat2;
  for (const at::Tensor* t : {&mat1, &mat2, call.bias, call.out}) {
    if (t == nullptr) {
      continue;
    }
    if (!t->defined()) {
      return "undefined tensor";
    }
    if (!is_plain(*t)) {
      return "tensor that is sparse, named, or a view that conjugates, negates or stands for zeros";
    }
    if (t->scalar_type() != mat1.scalar_type()) {
      return "more than one dtype";
    }
    if (t->device() != mat1.device()) {
      return "more than one device";
    }
  }
  const at::ScalarType dtype = mat1.scalar_type();
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16) {
    return "dtype other than float32, float16, bfloat16";
  }
  if (mat1.dim() != 2 || mat2.dim() != 2) {
    return "mat1 or mat2 that is not a matrix";
  }
  if (mat1.size(1) != mat2.size(0)) {
    return "mat1 and mat2 whose inner sizes differ";
  }
  if (call.bias != nullptr && !broadcasts_to(*call.bias, mat1.size(0), mat2.size(1))) {
    return "bias that does not broadcast to the result";
  }
  return nullptr;
}

// Shapes and strides that the kernel does not take.
const char* decline_geometry(const LinearCall& call) {
  const at::Tensor& mat1 = call.mat1;
  const at::Tensor& mat2 = call.mat2;
  const int64_t m = mat1.size(0);
  const int64_t n = mat2.size(1);
  const int64_t k = mat1.size(1);
  if (m == 0 || n == 0 || k == 0) {
    return "empty dimension";
  }
  if (m > kMostRows) {
    return "more than 64 rows";
  }
  if (n > INT32_MAX / 2 || k > INT32_MAX / 2) {
    return "dimension of 2^30 or more";
  }
  if (!has_aligned_rows(mat1, 0, 1)) {
    return "mat1 whose rows are not contiguous in multiples of 16 bytes";
  }
  if (!is_transposed(mat2) && !has_aligned_rows(mat2, 0, 1)) {
    return "mat2 that is neither rows nor columns contiguous in multiples of 16 bytes";
  }
  if (call.out == nullptr) {
    return nullptr;
  }
  const at::Tensor& out = *call.out;
  if (out.dim() != 2 || out.size(0) != m || out.size(1) != n) {
    return "out of another shape";
  }
  if ((n > 1 && out.stride(1) != 1) || (m > 1 && out.stride(0) < n)) {
    return "out whose rows are not contiguous";
  }
  if (out.is_alias_of(mat1) || out.is_alias_of(mat2) ||
      (call.bias != nullptr && out.is_alias_of(*call.bias))) {
    return "out that shares memory with an operand";
  }
  return nullptr;
}

// cuBLAS is deterministic with one of these, and upstream reports where it is not.
bool cublas_is_deterministic() {
  const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  return config != nullptr && (std::strcmp(config, ":4096:8") == 0 || std::strcmp(config, ":16:8") == 0);
}

// What the user asked of matrix products that the kernel would not do, or not as fast.
const char* decline_context(at::ScalarType dtype) {
  at::Context& context = at::globalContext();
  const at::BlasBackend backend = context.blasPreferredBackend();
  if (backend != at::BlasBackend::Default && backend != at::BlasBackend::Cublas) {
    return "preferred BLAS library other than the default";
  }
  if (context._SMCarveout_EXPERIMENTAL().has_value()) {
    return "multiprocessors set aside";
  }
  if (context.deterministicAlgorithms() && !cublas_is_deterministic()) {
    return "deterministic algorithms without CUBLAS_WORKSPACE_CONFIG";
  }
  if (dtype == at::kFloat) {
    const at::Float32Precision precision =
        context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
    const bool is_ieee = precision == at::Float32Precision::NONE || precision == at::Float32Precision::IEEE;
    return is_ieee ? nullptr : "float32 precision other than IEEE is allowed";
  }
  if (dtype == at::kHalf && context.allowFP16AccumulationCuBLAS()) {
    return "fp16 accumulation is allowed";
  }
  const at::CuBLASReductionOption reduction =
      dtype == at::kHalf ? context.allowFP16ReductionCuBLAS() : context.allowBF16ReductionCuBLAS();
  if (reduction == at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK) {
    return "split K is not allowed";
  }
  return nullptr;
}

#ifdef ATEN_EXT_WITH_CUDA
const char* decline_machine(const at::Tensor& mat1) {
  if (at::cuda::tunable::getTuningContext()->IsTunableOpEnabled()) {
    return "TunableOp is on";
  }
  // A meta tensor asks about the GPU that the kernel was written for.
  if (mat1.is_cuda() && at::cuda::getDeviceProperties(mat1.device().index())->major < 9) {
    return "GPU older than sm_90";
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
  reason = decline_geometry(call);
  reason = reason ? reason : decline_context(call.mat1.scalar_type());
  return reason ? reason : decline_machine(call.mat1);
}

}  // namespace

const char* decline::addmm_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                const at::Scalar& beta, const at::Scalar& alpha) {
  return decline_linear({&self, mat1, mat2, nullptr}, beta, alpha);
}

const char* decline::addmm_out_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                    const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return decline_linear({&self, mat1, mat2, &out}, beta, alpha);
}

const char* decline::_addmm_activation_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                            const at::Tensor& mat2, const at::Scalar& beta,
                                            const at::Scalar& alpha, bool /*use_gelu*/) {
  return decline_linear({&self, mat1, mat2, nullptr}, beta, alpha);
}

const char* decline::_addmm_activation_out_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                                const at::Tensor& mat2, const at::Scalar& beta,
                                                const at::Scalar& alpha, bool /*use_gelu*/, at::Tensor& out) {
  return decline_linear({&self, mat1, mat2, &out}, beta, alpha);
}

const char* decline::mm_cuda(const at::Tensor& self, const at::Tensor& mat2) {
  return decline_linear({nullptr, self, mat2, nullptr}, 0, 1);
}

const char* decline::mm_out_cuda(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  return decline_linear({nullptr, self, mat2, &out}, 0, 1);
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

LinearActivation to_activation(bool use_gelu) {
  return use_gelu ? LinearActivation::GELU : LinearActivation::ReLU;
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

void run_linear(const at::Tensor* bias, const at::Tensor& mat1, const at::Tensor& mat2, float beta,
                float alpha, LinearActivation activation, const at::Tensor& out) {
  LinearParams p{};
  p.mat1 = mat1.const_data_ptr();
  p.mat2 = mat2.const_data_ptr();
  p.out = out.mutable_data_ptr();
  p.M = static_cast<int32_t>(mat1.size(0));
  p.N = static_cast<int32_t>(mat2.size(1));
  p.K = static_cast<int32_t>(mat1.size(1));
  p.mat2_is_transposed = is_transposed(mat2);
  p.mat1_stride = mat1.stride(0);
  p.mat2_stride = mat2.stride(p.mat2_is_transposed ? 1 : 0);
  p.out_stride = out.stride(0);
  // With beta = 0 the bias is not read: it may be NaN.
  if (bias != nullptr && beta != 0) {
    p.bias = bias->const_data_ptr();
    p.bias_stride_m = broadcast_stride(*bias, 1);
    p.bias_stride_n = broadcast_stride(*bias, 0);
  }
  p.alpha = alpha;
  p.beta = beta;
  p.dtype = to_linear_dtype(mat1.scalar_type());
  p.activation = activation;
  const int multiprocessors = at::cuda::getDeviceProperties(mat1.device().index())->multiProcessorCount;
  C10_CUDA_CHECK(cuda::launch_linear(p, multiprocessors, c10::cuda::getCurrentCUDAStream()));
}

}  // namespace

at::Tensor run::addmm_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                           const at::Scalar& beta, const at::Scalar& alpha) {
  const c10::cuda::CUDAGuard guard(mat1.device());
  at::Tensor out = make_out(mat1, mat2);
  run_linear(&self, mat1, mat2, beta.toFloat(), alpha.toFloat(), LinearActivation::None, out);
  return out;
}

at::Tensor& run::addmm_out_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(mat1.device());
  run_linear(&self, mat1, mat2, beta.toFloat(), alpha.toFloat(), LinearActivation::None, out);
  return out;
}

at::Tensor run::_addmm_activation_cuda(const at::Tensor& self, const at::Tensor& mat1, const at::Tensor& mat2,
                                       const at::Scalar& beta, const at::Scalar& alpha, bool use_gelu) {
  const c10::cuda::CUDAGuard guard(mat1.device());
  at::Tensor out = make_out(mat1, mat2);
  run_linear(&self, mat1, mat2, beta.toFloat(), alpha.toFloat(), to_activation(use_gelu), out);
  return out;
}

at::Tensor& run::_addmm_activation_out_cuda(const at::Tensor& self, const at::Tensor& mat1,
                                            const at::Tensor& mat2, const at::Scalar& beta,
                                            const at::Scalar& alpha, bool use_gelu, at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(mat1.device());
  run_linear(&self, mat1, mat2, beta.toFloat(), alpha.toFloat(), to_activation(use_gelu), out);
  return out;
}

at::Tensor run::mm_cuda(const at::Tensor& self, const at::Tensor& mat2) {
  const c10::cuda::CUDAGuard guard(self.device());
  at::Tensor out = make_out(self, mat2);
  run_linear(nullptr, self, mat2, 0.0f, 1.0f, LinearActivation::None, out);
  return out;
}

at::Tensor& run::mm_out_cuda(const at::Tensor& self, const at::Tensor& mat2, at::Tensor& out) {
  const c10::cuda::CUDAGuard guard(self.device());
  run_linear(nullptr, self, mat2, 0.0f, 1.0f, LinearActivation::None, out);
  return out;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
