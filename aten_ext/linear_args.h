// What the ways of a linear layer share: the arguments of addmm, mm and _addmm_activation, and the part of
// their rule that is the same for the kernel for few rows (cuda/linear.cpp) and for cuBLASLt
// (cuda/linear_lt.cpp).
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace aten_ext {

enum class LinearEpilogue : uint8_t { None, ReLU, GELU };  // GELU in its tanh form

// What the six overloads have in common. mm is addmm with no bias and beta = 0.
struct LinearCall {
  const at::Tensor* bias;  // nullptr: mm
  const at::Tensor& mat1;
  const at::Tensor& mat2;
  const at::Tensor* out;  // nullptr: to be made
  LinearEpilogue epilogue;

  int64_t m() const {
    return mat1.size(0);
  }
  int64_t n() const {
    return mat2.size(1);
  }
  int64_t k() const {
    return mat1.size(1);
  }
};

// cuBLASLt, as upstream asks it, with a plan that is remembered: cuda/linear_lt.cpp. The rule is asked after
// decline_operands() and decline_flags().
const char* decline_lt(const LinearCall& call, const at::Scalar& beta);
// Whether the heuristic has an answer; asks it the first time. For a call that the rest of the rule takes.
bool has_lt_plan(const LinearCall& call);
// False: it could not, and nothing was launched. The current device is that of the operands.
bool run_lt(const LinearCall& call, float alpha, const at::Tensor& out);

// Dimensions with names, which later releases of torch do not have: the second is for those.
template <typename Tensor>
auto has_names(const Tensor& t, int /*preferred*/) -> decltype(t.has_names()) {
  return t.has_names();
}
template <typename Tensor>
bool has_names(const Tensor& /*t*/, long /*otherwise*/) {
  return false;
}

inline bool is_plain(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() && !has_names(t, 0);
}

inline bool broadcasts_to(const at::Tensor& bias, int64_t m, int64_t n) {
  const int64_t dims = bias.dim();
  return dims <= 2 && (dims < 1 || bias.size(dims - 1) == 1 || bias.size(dims - 1) == n) &&
         (dims < 2 || bias.size(0) == 1 || bias.size(0) == m);
}

// Upstream converts to float, which raises for what it cannot hold.
inline bool fits_float(const at::Scalar& scalar) {
  if (scalar.isComplex()) {
    return false;
  }
  const double value = scalar.toDouble();
  return !std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max();
}

// What upstream would raise an error about, and what neither way can read or write.
inline const char* decline_operands(const LinearCall& call) {
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
  const int64_t m = call.m();
  const int64_t n = call.n();
  const int64_t k = call.k();
  if (call.bias != nullptr && !broadcasts_to(*call.bias, m, n)) {
    return "bias that does not broadcast to the result";
  }
  if (m == 0 || n == 0 || k == 0) {
    return "empty dimension";
  }
  if (m > INT32_MAX / 2 || n > INT32_MAX / 2 || k > INT32_MAX / 2) {
    return "dimension of 2^30 or more";
  }
  if (call.out == nullptr) {
    return nullptr;
  }
  const at::Tensor& out = *call.out;
  if (out.dim() != 2 || out.size(0) != m || out.size(1) != n) {
    return "out of another shape";
  }
  if (out.is_alias_of(mat1) || out.is_alias_of(mat2) ||
      (call.bias != nullptr && out.is_alias_of(*call.bias))) {
    return "out that shares memory with an operand";
  }
  return nullptr;
}

// cuBLAS is deterministic with one of these, and upstream reports where it is not.
inline bool cublas_is_deterministic() {
  const char* config = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  return config != nullptr && (std::strcmp(config, ":4096:8") == 0 || std::strcmp(config, ":16:8") == 0);
}

// What the user asked of matrix products that neither way does.
inline const char* decline_flags(at::ScalarType dtype) {
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
  if (dtype == at::kHalf && context.allowFP16AccumulationCuBLAS()) {
    return "fp16 accumulation is allowed";
  }
  return nullptr;
}

inline at::Float32Precision float32_precision() {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
}

// What upstream may do to a sum that is split, in 16 bits.
inline at::CuBLASReductionOption reduction_of(at::ScalarType dtype) {
  const at::Context& context = at::globalContext();
  return dtype == at::kHalf ? context.allowFP16ReductionCuBLAS() : context.allowBF16ReductionCuBLAS();
}

}  // namespace aten_ext
