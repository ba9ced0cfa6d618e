// Linear layers with a bias through cuBLASLt, as upstream asks it, but once: upstream makes descriptors and
// asks the heuristic at every call, which is most of what the call costs on the CPU. Here the answer is kept,
// in a plan of everything that the question depends on (linear_lt.h). Descriptors, preferences and workspace
// limit are upstream's, so the heuristic's answers are those that upstream gets, and the first of them is
// what it runs. In one case another of them is faster (choose()); the sums are the same, term by term, and so
// are the bits.
//
// A thread has plans of its own, as it has a cuBLAS handle of its own: no lock. The workspace, where an
// algorithm wants one, comes from the caching allocator for the one call, on the current stream: safe among
// streams and under capture.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <cstdlib>
#include <cstring>

#include "linear_args.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include "cuda/linear_lt.h"
#include "lru_cache.h"
#endif

namespace aten_ext {
namespace {

constexpr int64_t kSmallFloatWeight = 1 << 16;
constexpr int64_t kManyRowsOfIt = 128;

bool has_rows(const at::Tensor& t) {
  return t.stride(1) == 1 && t.stride(0) >= t.size(1);
}

bool has_columns(const at::Tensor& t) {
  return t.stride(0) == 1 && t.stride(1) >= t.size(0);
}

// Upstream's switch, which it reads once, too.
bool upstream_has_lt() {
  static const bool answer = [] {
    const char* value = std::getenv("DISABLE_ADDMM_CUDA_LT");
    return value == nullptr || std::strcmp(value, "1") != 0;
  }();
  return answer;
}

}  // namespace

// Where upstream, too, lets cuBLASLt add the bias: elsewhere its bits are another kernel's.
const char* decline_lt(const LinearCall& call, const at::Scalar& beta) {
  if (call.bias == nullptr) {
    // mm: upstream asks cuBLAS, which has other kernels, many of them faster in fp32 and with few rows.
    return "more than 64 rows";
  }
  if (!upstream_has_lt()) {
    return "DISABLE_ADDMM_CUDA_LT is set";
  }
  const at::Tensor& bias = *call.bias;
  if (beta.toDouble() != 1.0 || bias.dim() != 1 || bias.size(0) != call.n() || !bias.is_contiguous()) {
    return "many rows, and beta other than 1 or a bias that is no contiguous vector";
  }
  if (call.m() < 2 || call.n() < 2 || call.k() < 2) {
    return "dimension of 1 that cuBLASLt does not take";
  }
  for (const at::Tensor* t : {&call.mat1, &call.mat2}) {
    if (!has_rows(*t) && !has_columns(*t)) {
      return "many rows, and a matrix with neither rows nor columns contiguous";
    }
  }
  if (call.out != nullptr && !call.out->is_contiguous()) {
    return "many rows, and out that is not contiguous";
  }
  // 64 x 64 and 256 rows: 13.7 us on an H200, 13.2 upstream; with 65 rows 13.1 and 13.0. Layers between that
  // and 3072 x 768, where they are equal, were not measured.
  if (call.mat1.scalar_type() == at::kFloat && call.m() >= kManyRowsOfIt &&
      call.n() * call.k() < kSmallFloatWeight) {
    return "many rows, and a small float32 weight";
  }
#ifdef ATEN_EXT_WITH_CUDA
  // Tensors elsewhere (meta) ask about some GPU, whose cuBLASLt cannot be asked.
  if (call.mat1.is_cuda() && !has_lt_plan(call)) {
    return "cuBLASLt has no algorithm for the layer";
  }
#endif
  return nullptr;
}

}  // namespace aten_ext

#ifdef ATEN_EXT_WITH_CUDA

namespace aten_ext {
namespace {

using cuda::LtDtype;
using cuda::LtEpilogue;
using cuda::LtKey;
using cuda::LtReduction;

// Plain memory: descriptors are initialised in place and need no destruction.
struct Plan {
  cublasLtHandle_t handle;
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t mat1, mat2, out;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;  // in bytes
  bool usable;
};

uint8_t alignment_of(const void* pointer) {
  return cuda::log2_alignment(reinterpret_cast<uintptr_t>(pointer));
}

LtKey key_of(const LinearCall& call, const at::Tensor* out) {
  LtKey key{};
  key.m = call.m();
  key.n = call.n();
  key.k = call.k();
  key.mat1_is_transposed = !has_rows(call.mat1);
  key.mat2_is_transposed = !has_rows(call.mat2);
  key.mat1_stride = call.mat1.stride(key.mat1_is_transposed ? 1 : 0);
  key.mat2_stride = call.mat2.stride(key.mat2_is_transposed ? 1 : 0);
  key.device = call.mat1.device().index();
  const at::ScalarType dtype = call.mat1.scalar_type();
  if (dtype == at::kFloat) {
    key.dtype = LtDtype::Float;
    key.tf32 = float32_precision() == at::Float32Precision::TF32;
  } else {
    key.dtype = dtype == at::kHalf ? LtDtype::Half : LtDtype::BFloat16;
    switch (reduction_of(dtype)) {
      case at::CuBLASReductionOption::AllowReducedPrecisionWithSplitK:
        key.reduction = LtReduction::Any;
        break;
      case at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK:
        key.reduction = LtReduction::ComputeType;
        break;
      case at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK:
        key.reduction = LtReduction::None;
        break;
    }
  }
  switch (call.epilogue) {
    case LinearEpilogue::None:
      key.epilogue = LtEpilogue::Bias;
      break;
    case LinearEpilogue::ReLU:
      key.epilogue = LtEpilogue::ReLUBias;
      break;
    case LinearEpilogue::GELU:
      key.epilogue = LtEpilogue::GELUBias;
      break;
  }
  key.mat1_alignment = alignment_of(call.mat1.const_data_ptr());
  key.mat2_alignment = alignment_of(call.mat2.const_data_ptr());
  key.bias_alignment = alignment_of(call.bias->const_data_ptr());
  // Not made yet: the allocator's memory is aligned to more than counts.
  key.out_alignment = alignment_of(out == nullptr ? nullptr : out->const_data_ptr());
  return key;
}

cudaDataType_t data_type(LtDtype dtype) {
  switch (dtype) {
    case LtDtype::Half:
      return CUDA_R_16F;
    case LtDtype::BFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t lt_epilogue(LtEpilogue epilogue) {
  switch (epilogue) {
    case LtEpilogue::ReLUBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case LtEpilogue::GELUBias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    default:
      return CUBLASLT_EPILOGUE_BIAS;
  }
}

template <typename T>
bool set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}
template <typename T>
bool set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

// cuBLAS counts by columns: its A is mat2 and its B mat1, both transposed, its C the transposed result.
bool describe(const LtKey& key, Plan& plan) {
  const cudaDataType_t type = data_type(key.dtype);
  const cublasOperation_t transpose_mat2 = key.mat2_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t transpose_mat1 = key.mat1_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto layout = [&](cublasLtMatrixLayout_t where, int64_t rows, int64_t columns, bool transposed,
                          int64_t stride) {
    return cublasLtMatrixLayoutInit(where, type, transposed ? columns : rows, transposed ? rows : columns,
                                    stride) == CUBLAS_STATUS_SUCCESS;
  };
  return cublasLtMatmulDescInit(&plan.product, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSA, transpose_mat2) &&
         set(&plan.product, CUBLASLT_MATMUL_DESC_TRANSB, transpose_mat1) &&
         set(&plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, lt_epilogue(key.epilogue)) &&
         layout(&plan.mat2, key.n, key.k, key.mat2_is_transposed, key.mat2_stride) &&
         layout(&plan.mat1, key.k, key.m, key.mat1_is_transposed, key.mat1_stride) &&
         layout(&plan.out, key.n, key.m, false, key.n);
}

bool set_bias(Plan& plan, const void* bias) {
  return set(&plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
}

// What upstream lets the heuristic choose from.
bool prefer(const LtKey& key, cublasLtMatmulPreference_t preference) {
  const size_t workspace = at::cuda::getCUDABlasLtWorkspaceSize();
  const auto bytes = [](uint8_t log2) { return uint32_t{1} << log2; };
  bool ok = cublasLtMatmulPreferenceInit(preference) == CUBLAS_STATUS_SUCCESS &&
            set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) &&
            set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(key.mat2_alignment)) &&
            set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(key.mat1_alignment)) &&
            set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(key.out_alignment)) &&
            set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(key.bias_alignment));
  if (key.reduction != LtReduction::Any) {
    const uint32_t mask = key.reduction == LtReduction::ComputeType
                              ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_NONE
                              : CUBLASLT_REDUCTION_SCHEME_NONE;
    ok = ok && set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, mask);
  }
  return ok;
}

// How many answers the heuristic is asked for.
constexpr int kAnswers = 8;

uint32_t attribute_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  uint32_t value = 0;
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : UINT32_MAX;
}

// cuBLASLt's number for its kernels of 16 bits that load through Hopper's TMA.
constexpr uint32_t kHopperKernels = 66;
// What the rule below was measured to gain by: few terms a sum, so that storing the result counts, and many
// rows, in whole tiles.
constexpr int64_t kMostTermsOfSmallTiles = 3072;
constexpr int64_t kLeastRowsOfSmallTiles = 384;
constexpr int64_t kRowsOfSmallTiles = 128;

// The first answer, which is upstream's, or one that does the same sums faster.
//
// In 16 bits on Hopper cuBLASLt likes tiles of 128 x 256 and more. Where there are more of them than two for
// each multiprocessor and K is short, tiles of 128 x 128 of the same kernel are faster: on an H200
// (2026-11-20, 655 layers of 44 shapes, K from 512 to 2560) 1.09 times in the mean and 1.31 at most; one at
// 0.96, where equal kernels measured 0.95 to 1.06. Both add up K in one order, so the bits are the same. The
// rule looks at the answers alone, not at a clock: every run chooses alike.
int choose(const LtKey& key, const cublasLtMatmulHeuristicResult_t (&answers)[kAnswers], int count) {
  const auto of = [&](int i, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    return attribute_of(answers[i].algo, attribute);
  };
  const auto is_whole_sums = [&](int i) {
    return of(i, CUBLASLT_ALGO_CONFIG_ID) == kHopperKernels && of(i, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 1;
  };
  if (key.dtype == LtDtype::Float || key.k > kMostTermsOfSmallTiles || key.m < kLeastRowsOfSmallTiles ||
      key.m % kRowsOfSmallTiles != 0 || answers[0].wavesCount <= 2 || !is_whole_sums(0)) {
    return 0;
  }
  for (int i = 1; i < count; ++i) {
    if (answers[i].state == CUBLAS_STATUS_SUCCESS && is_whole_sums(i) &&
        of(i, CUBLASLT_ALGO_CONFIG_TILE_ID) == CUBLASLT_MATMUL_TILE_128x128) {
      return i;
    }
  }
  return 0;
}

void make_plan(const LtKey& key, const void* bias, Plan& plan) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(key.device));
  plan = {};
  plan.handle = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t answers[kAnswers]{};
  int count = 0;
  plan.usable =
      describe(key, plan) && set_bias(plan, bias) && prefer(key, &preference) &&
      cublasLtMatmulAlgoGetHeuristic(plan.handle, &plan.product, &plan.mat2, &plan.mat1, &plan.out, &plan.out,
                                     &preference, kAnswers, answers, &count) == CUBLAS_STATUS_SUCCESS &&
      count > 0;
  if (plan.usable) {
    const cublasLtMatmulHeuristicResult_t& answer = answers[choose(key, answers, count)];
    plan.algorithm = answer.algo;
    plan.workspace = answer.workspaceSize;
  }
}

Plan& plan_of(const LtKey& key, const void* bias) {
  static thread_local LruCache<LtKey, Plan> plans(cuda::kMostLtPlans);
  return plans.get(key, [&](Plan& plan) { make_plan(key, bias, plan); });
}

}  // namespace

bool has_lt_plan(const LinearCall& call) {
  return plan_of(key_of(call, call.out), call.bias->const_data_ptr()).usable;
}

bool run_lt(const LinearCall& call, float alpha, const at::Tensor& out) {
  const void* bias = call.bias->const_data_ptr();
  Plan& plan = plan_of(key_of(call, &out), bias);
  if (!plan.usable || !set_bias(plan, bias)) {
    return false;
  }
  at::Tensor workspace;
  if (plan.workspace > 0) {
    workspace = at::Tensor(at::detail::empty_cuda({static_cast<int64_t>(plan.workspace)}, at::kByte,
                                                  call.mat1.device(), std::nullopt));
  }
  const float zero = 0.0f;  // the bias is the epilogue's
  void* result = out.mutable_data_ptr();
  return cublasLtMatmul(plan.handle, &plan.product, &alpha, call.mat2.const_data_ptr(), &plan.mat2,
                        call.mat1.const_data_ptr(), &plan.mat1, &zero, result, &plan.out, result, &plan.out,
                        &plan.algorithm, workspace.defined() ? workspace.mutable_data_ptr() : nullptr,
                        plan.workspace, c10::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
