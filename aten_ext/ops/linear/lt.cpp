// Linear layers with a bias through cuBLASLt, as upstream asks it, but once: upstream makes descriptors and
// asks the heuristic at every call, which is most of what the call costs on the CPU. Here the answer is kept,
// for everything that the question depends on (LtKey). Descriptors, preferences and workspace limit are
// upstream's, so the heuristic's answers are those that upstream gets, and the first of them is what it runs.
// In one case another of them is faster (pick()); the sums are the same, term by term, and so are the bits.
//
// A thread has products of its own, as it has a cuBLAS handle of its own: no lock. The workspace, where an
// algorithm wants one, comes from the caching allocator for the one call, on the current stream: safe among
// streams and under capture.
#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cublasLt.h>

#include "core/lru_cache.h"
#include "ops/linear/call.h"
#include "ops/linear/lt.h"
#include "ops/linear/run_lt.h"

namespace aten_ext {
namespace {

using cuda::LtKey;
using cuda::LtReduction;

// Plain memory: descriptors are initialised in place and need no destruction.
struct Product {
  cublasLtHandle_t handle;
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t mat1, mat2, out;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;  // in bytes
  bool usable;
};

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::Half:
      return CUDA_R_16F;
    case Dtype::BFloat16:
      return CUDA_R_16BF;
    default:
      return CUDA_R_32F;
  }
}

cublasLtEpilogue_t lt_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::ReLU:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::GELU:
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
bool describe(const LtKey& key, Product& product) {
  const cudaDataType_t type = data_type(key.dtype);
  const cublasOperation_t transpose_mat2 = key.mat2_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t transpose_mat1 = key.mat1_is_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const auto layout = [&](cublasLtMatrixLayout_t where, int64_t rows, int64_t columns, bool transposed,
                          int64_t stride) {
    return cublasLtMatrixLayoutInit(where, type, transposed ? columns : rows, transposed ? rows : columns,
                                    stride) == CUBLAS_STATUS_SUCCESS;
  };
  return cublasLtMatmulDescInit(&product.description,
                                key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         set(&product.description, CUBLASLT_MATMUL_DESC_TRANSA, transpose_mat2) &&
         set(&product.description, CUBLASLT_MATMUL_DESC_TRANSB, transpose_mat1) &&
         set(&product.description, CUBLASLT_MATMUL_DESC_EPILOGUE, lt_epilogue(key.epilogue)) &&
         layout(&product.mat2, key.n, key.k, key.mat2_is_transposed, key.mat2_stride) &&
         layout(&product.mat1, key.k, key.m, key.mat1_is_transposed, key.mat1_stride) &&
         layout(&product.out, key.n, key.m, false, key.n);
}

bool set_bias(Product& product, const void* bias) {
  return set(&product.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
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

// The number of answers that the heuristic is asked for.
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
// rows, in whole tiles. Of fewer terms than 256 (2026-11-30, 11 sizes each of K from 8 to 192) tiles of 128 x
// 128 are between 0.85 and 1.22 times as fast.
constexpr int64_t kMinTermsOfSmallTiles = 256;
constexpr int64_t kMaxTermsOfSmallTiles = 3072;
constexpr int64_t kMinRowsOfSmallTiles = 384;
constexpr int64_t kRowsOfSmallTiles = 128;

// The first answer, which is upstream's, or one that does the same sums faster.
//
// In 16 bits on Hopper cuBLASLt likes tiles of 128 x 256 and more. Where there are more of them than two for
// each multiprocessor and K is short, tiles of 128 x 128 of the same kernel are faster: on an H200
// (2026-11-20, 655 layers of 44 shapes, K from 512 to 2560) 1.09 times in the mean and 1.31 at most; one at
// 0.96, where equal kernels measured 0.95 to 1.06. Both add up K in one order, so the bits are the same. The
// rule looks at the answers alone, not at a clock: every run chooses alike.
int pick(const LtKey& key, const cublasLtMatmulHeuristicResult_t (&answers)[kAnswers], int count) {
  const auto of = [&](int i, cublasLtMatmulAlgoConfigAttributes_t attribute) {
    return attribute_of(answers[i].algo, attribute);
  };
  const auto is_whole_sums = [&](int i) {
    return of(i, CUBLASLT_ALGO_CONFIG_ID) == kHopperKernels && of(i, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) == 1;
  };
  if (key.dtype == Dtype::Float || key.k < kMinTermsOfSmallTiles || key.k > kMaxTermsOfSmallTiles ||
      key.m < kMinRowsOfSmallTiles || key.m % kRowsOfSmallTiles != 0 || answers[0].wavesCount <= 2 ||
      !is_whole_sums(0)) {
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

void make_product(const LtKey& key, const void* bias, Product& product) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(key.device));
  product = {};
  product.handle = at::cuda::getCurrentCUDABlasLtHandle();
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t answers[kAnswers]{};
  int count = 0;
  product.usable = describe(key, product) && set_bias(product, bias) && prefer(key, &preference) &&
                   cublasLtMatmulAlgoGetHeuristic(product.handle, &product.description, &product.mat2,
                                                  &product.mat1, &product.out, &product.out, &preference,
                                                  kAnswers, answers, &count) == CUBLAS_STATUS_SUCCESS &&
                   count > 0;
  if (product.usable) {
    const cublasLtMatmulHeuristicResult_t& answer = answers[pick(key, answers, count)];
    product.algorithm = answer.algo;
    product.workspace = answer.workspaceSize;
  }
}

Product& product_of(const LtKey& key, const void* bias) {
  static thread_local LruCache<LtKey, Product> products(cuda::kMaxLtProducts);
  return products.get(key, [&](Product& product) { make_product(key, bias, product); });
}

}  // namespace

bool run_lt(const LinearCall& call, const cuda::LtKey& key, float alpha, const at::Tensor& out) {
  const void* bias = call.bias->const_data_ptr();
  Product& product = product_of(key, bias);
  if (!product.usable || !set_bias(product, bias)) {
    return false;
  }
  // Upstream's own, of this thread and stream: it takes no time to get, and lies where upstream's products
  // are as fast as they are.
  void* workspace = product.workspace > 0 ? at::cuda::getCUDABlasLtWorkspace() : nullptr;
  const float zero = 0.0f;  // the bias is the epilogue's
  void* result = out.mutable_data_ptr();
  return cublasLtMatmul(product.handle, &product.description, &alpha, call.mat2.const_data_ptr(),
                        &product.mat2, call.mat1.const_data_ptr(), &product.mat1, &zero, result, &product.out,
                        result, &product.out, &product.algorithm, workspace, product.workspace,
                        c10::cuda::getCurrentCUDAStream()) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace aten_ext

#endif  // ATEN_EXT_WITH_CUDA
