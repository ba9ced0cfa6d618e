// The arguments of addmm, mm and _addmm_activation as one kind of call, and what no way of ours takes of
// them.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "args.h"
#include "ops/linear/epilogue.h"

namespace aten_ext {

// What the six overloads have in common: references to the caller's arguments. mm is addmm with no bias.
struct LinearCall {
  const at::Tensor* bias;  // nullptr: mm
  const at::Tensor& mat1;
  const at::Tensor& mat2;
  const at::Tensor* out;  // nullptr: to be made
  Epilogue epilogue = Epilogue::None;
  const at::Scalar* beta = nullptr;   // mm: 0
  const at::Scalar* alpha = nullptr;  // mm: 1

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

inline LinearCall call_of(const args::mm& a) {
  return {nullptr, a.self, a.mat2, nullptr};
}
inline LinearCall call_of(const args::mm_out& a) {
  return {nullptr, a.self, a.mat2, &a.out};
}
inline LinearCall call_of(const args::addmm& a) {
  return {&a.self, a.mat1, a.mat2, nullptr, Epilogue::None, &a.beta, &a.alpha};
}
inline LinearCall call_of(const args::addmm_out& a) {
  return {&a.self, a.mat1, a.mat2, &a.out, Epilogue::None, &a.beta, &a.alpha};
}
inline LinearCall call_of(const args::_addmm_activation& a) {
  return {&a.self, a.mat1, a.mat2, nullptr, a.use_gelu ? Epilogue::GELU : Epilogue::ReLU, &a.beta, &a.alpha};
}
inline LinearCall call_of(const args::_addmm_activation_out& a) {
  return {&a.self, a.mat1, a.mat2, &a.out, a.use_gelu ? Epilogue::GELU : Epilogue::ReLU, &a.beta, &a.alpha};
}

// Dimensions with names, which later releases of torch do not have: the second is for those.
template <typename Tensor>
auto has_names(const Tensor& t, int /*preferred*/) -> decltype(t.has_names()) {
  return t.has_names();
}
template <typename Tensor>
bool has_names(const Tensor& /*t*/, long /*otherwise*/) {
  return false;
}

// What lies in memory is what the tensor stands for.
inline bool is_ordinary_matrix(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_conj() && !t.is_neg() && !t._is_zerotensor() && !has_names(t, 0);
}

inline bool broadcasts_to(const at::Tensor& bias, int64_t m, int64_t n) {
  const int64_t dims = bias.dim();
  return dims <= 2 && (dims < 1 || bias.size(dims - 1) == 1 || bias.size(dims - 1) == n) &&
         (dims < 2 || bias.size(0) == 1 || bias.size(0) == m);
}

inline bool fits_float(const at::Scalar& scalar) {
  if (scalar.isComplex()) {
    return false;
  }
  const double value = scalar.toDouble();
  return !std::isfinite(value) || std::abs(value) <= std::numeric_limits<float>::max();
}

inline float to_float(const at::Scalar* scalar, float otherwise) {
  return scalar == nullptr ? otherwise : scalar->toFloat();
}

// Whether upstream lets cuBLASLt add the bias. Anything else it copies into the result first.
inline bool is_bias_of_lt(const LinearCall& call) {
  const at::Tensor* bias = call.bias;
  return bias != nullptr && call.beta->toDouble() == 1.0 && bias->dim() == 1 && bias->size(0) == call.n() &&
         bias->is_contiguous();
}

// Upstream converts alpha and beta to float, which raises for what it cannot hold. With alpha = 0 it reads
// neither mat1 nor mat2, which may be NaN.
inline const char* decline_scalars(const LinearCall& call) {
  if (call.alpha == nullptr) {
    return nullptr;
  }
  if (!fits_float(*call.beta) || !fits_float(*call.alpha)) {
    return "alpha or beta that is no number of float32";
  }
  return call.alpha->toFloat() == 0.0f ? "alpha of 0" : nullptr;
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
    if (!is_ordinary_matrix(*t)) {
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

// The flags that steer upstream's arithmetic, read once a call.
struct MatmulFlags {
  at::Float32Precision precision;       // of float32
  at::CuBLASReductionOption reduction;  // of 16 bits: what upstream may do to a sum that is split
};

inline MatmulFlags read_flags(at::ScalarType dtype) {
  at::Context& context = at::globalContext();
  return {context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL),
          dtype == at::kHalf ? context.allowFP16ReductionCuBLAS() : context.allowBF16ReductionCuBLAS()};
}

}  // namespace aten_ext
