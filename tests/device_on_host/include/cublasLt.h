// Stands in for cuBLASLt, of which it has what ops/linear/lt.cpp and ops/rnn/lt_product.cpp call: a heuristic
// that counts how often it is asked, and a product on the CPU that takes an algorithm only for the problem
// that it was chosen for, or that it was checked for.
#pragma once

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>
#include <library_types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32 };
enum cublasLtEpilogue_t {
  CUBLASLT_EPILOGUE_DEFAULT,
  CUBLASLT_EPILOGUE_BIAS,
  CUBLASLT_EPILOGUE_RELU_BIAS,
  CUBLASLT_EPILOGUE_GELU_BIAS,
};
enum cublasLtMatmulAlgoConfigAttributes_t {
  CUBLASLT_ALGO_CONFIG_ID,
  CUBLASLT_ALGO_CONFIG_TILE_ID,
  CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
};
enum cublasLtMatmulTile_t { CUBLASLT_MATMUL_TILE_128x128 = 20, CUBLASLT_MATMUL_TILE_256x128 = 24 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA,
  CUBLASLT_MATMUL_DESC_TRANSB,
  CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER,
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
};
enum cublasLtReductionScheme_t {
  CUBLASLT_REDUCTION_SCHEME_NONE = 0,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
};

using cublasLtHandle_t = void*;
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a, transpose_b;
  cublasLtEpilogue_t epilogue;
  const void* bias;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t stride;
  int32_t count;  // of a batch
  int64_t batch_stride;
};
struct cublasLtMatmulPreferenceOpaque_t {
  size_t workspace;
  uint32_t alignment[4];  // of A, B, C, D
  uint32_t reduction;
};
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;
// What it is, and what it was chosen for.
struct cublasLtMatmulAlgo_t {
  uint32_t config[3];  // by cublasLtMatmulAlgoConfigAttributes_t
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulPreferenceOpaque_t preference;
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
};

namespace device_on_host {

struct FakeLt {
  int64_t asked = 0;                            // how often the heuristic was
  bool answers = true;                          // whether it has an answer
  bool runs = true;                             // whether the product succeeds
  size_t workspace = 0;                         // bytes that every algorithm wants
  float waves = 1;                              // of the first answer
  uint32_t id = 66;                             // of the first answer's kernel
  uint32_t split = 1;                           // parts of K in the answer with smaller tiles
  int64_t kernel = 0;                           // of the last product: 1000 * id + tile
  int64_t products = 0;                         // of a batch each, that were run
  bool takes_parts = true;                      // whether an algorithm is good for fewer columns
  cublasComputeType_t compute{};                // of the last product
  int32_t count = 0;                            // of the last product's batch
  size_t last_workspace = 0;                    // bytes that the last product was given
  cublasLtMatmulPreferenceOpaque_t preference;  // of the last question
  // Fewer columns that an algorithm was checked for: of B and of C.
  std::vector<std::pair<cublasLtMatrixLayoutOpaque_t, cublasLtMatrixLayoutOpaque_t>> checked;
};
inline FakeLt& fake_lt() {
  static FakeLt fake{};
  return fake;
}

// As tensor cores read it: ten bits of mantissa.
inline float to_tf32(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  bits = (bits + 0x1000) & ~0x1fffu;
  std::memcpy(&x, &bits, sizeof(bits));
  return x;
}

inline bool same_layout(const cublasLtMatrixLayoutOpaque_t& x, const cublasLtMatrixLayoutOpaque_t& y) {
  return x.type == y.type && x.rows == y.rows && x.columns == y.columns && x.stride == y.stride &&
         x.count == y.count && x.batch_stride == y.batch_stride;
}

template <typename T, typename R>
cublasStatus_t lt_product(const cublasLtMatmulDescOpaque_t& d, float alpha, float beta, const void* a_memory,
                          const cublasLtMatrixLayoutOpaque_t& a, const void* b_memory,
                          const cublasLtMatrixLayoutOpaque_t& b, void* c_memory,
                          const cublasLtMatrixLayoutOpaque_t& c) {
  const auto at = [](const void* memory, const cublasLtMatrixLayoutOpaque_t& layout, bool transposed,
                     uint64_t row, uint64_t column) {
    const uint64_t index = transposed ? row * layout.stride + column : column * layout.stride + row;
    return static_cast<float>(static_cast<const T*>(memory)[index]);
  };
  const auto operand = [&](float x) { return d.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? to_tf32(x) : x; };
  const bool a_transposed = d.transpose_a == CUBLAS_OP_T;
  const bool b_transposed = d.transpose_b == CUBLAS_OP_T;
  const uint64_t depth = a_transposed ? a.rows : a.columns;
  for (uint64_t column = 0; column < c.columns; ++column) {
    for (uint64_t row = 0; row < c.rows; ++row) {
      float sum = 0;
      for (uint64_t k = 0; k < depth; ++k) {
        sum += operand(at(a_memory, a, a_transposed, row, k)) *
               operand(at(b_memory, b, b_transposed, k, column));
      }
      R& to = static_cast<R*>(c_memory)[column * c.stride + row];
      float x = alpha * sum;
      if (beta != 0) {
        x += beta * static_cast<float>(to);
      }
      if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
        x += static_cast<float>(static_cast<const T*>(d.bias)[row]);
      }
      if (d.epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        x = x > 0 ? x : 0;
      } else if (d.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS) {
        x = 0.5f * x * (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
      }
      to = static_cast<R>(x);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Every product of a batch.
template <typename T, typename R>
cublasStatus_t lt_products(const cublasLtMatmulDescOpaque_t& d, float alpha, float beta, const void* a_memory,
                           const cublasLtMatrixLayoutOpaque_t& a, const void* b_memory,
                           const cublasLtMatrixLayoutOpaque_t& b, void* c_memory,
                           const cublasLtMatrixLayoutOpaque_t& c) {
  for (int32_t i = 0; i < c.count; ++i) {
    lt_product<T, R>(d, alpha, beta, static_cast<const T*>(a_memory) + i * a.batch_stride, a,
                     static_cast<const T*>(b_memory) + i * b.batch_stride, b,
                     static_cast<R*>(c_memory) + i * c.batch_stride, c);
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace device_on_host

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = &device_on_host::fake_lt();
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) {
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t compute,
                                             cudaDataType_t /*scale*/) {
  *d = {compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                     cublasLtMatmulDescAttributes_t attribute,
                                                     const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      std::memcpy(&d->transpose_a, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      std::memcpy(&d->transpose_b, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      std::memcpy(&d->epilogue, value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      std::memcpy(&d->bias, value, bytes);
      break;
  }
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                               uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = {type, rows, columns, stride, 1, 0};
  return stride >= static_cast<int64_t>(rows) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t attribute,
                                                       const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    std::memcpy(&layout->count, value, bytes);
  } else {
    std::memcpy(&layout->batch_stride, value, bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {0, {1, 1, 1, 1}, ~0u};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t attribute,
                                                           const void* value, size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      std::memcpy(&preference->workspace, value, bytes);
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      std::memcpy(&preference->reduction, value, bytes);
      break;
    default:
      std::memcpy(&preference->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
  }
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t /*d*/,
                                                     cublasLtMatmulPreference_t preference, int most,
                                                     cublasLtMatmulHeuristicResult_t* result, int* answers) {
  device_on_host::FakeLt& fake = device_on_host::fake_lt();
  ++fake.asked;
  fake.preference = *preference;
  // Large tiles, smaller ones of another kernel, smaller ones of the same.
  const uint32_t configs[3][3] = {{fake.id, CUBLASLT_MATMUL_TILE_256x128, 1},
                                  {67, CUBLASLT_MATMUL_TILE_128x128, 1},
                                  {66, CUBLASLT_MATMUL_TILE_128x128, fake.split}};
  *answers = fake.answers ? std::min(most, 3) : 0;
  for (int i = 0; i < *answers; ++i) {
    result[i] = {{{configs[i][0], configs[i][1], configs[i][2]}, *d, *a, *b, *c, *preference},
                 fake.workspace,
                 CUBLAS_STATUS_SUCCESS,
                 fake.waves};
  }
  return CUBLAS_STATUS_SUCCESS;
}
// Whether an algorithm is good for another problem: for fewer columns of B and C.
inline cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t /*product*/,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t /*d*/,
                                              const cublasLtMatmulAlgo_t* algorithm,
                                              cublasLtMatmulHeuristicResult_t* result) {
  device_on_host::FakeLt& fake = device_on_host::fake_lt();
  if (!fake.takes_parts || !device_on_host::same_layout(*a, algorithm->a) ||
      b->columns > algorithm->b.columns || b->rows != algorithm->b.rows || c->rows != algorithm->c.rows) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  fake.checked.emplace_back(*b, *c);
  *result = {*algorithm, fake.workspace, CUBLAS_STATUS_SUCCESS, fake.waves};
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                           cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                           void* value, size_t bytes, size_t* written) {
  std::memcpy(value, &algorithm->config[attribute], bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t d, const void* alpha,
                                     const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                     cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                     cublasLtMatrixLayout_t c_layout, void* out,
                                     cublasLtMatrixLayout_t /*out_layout*/,
                                     const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                                     size_t workspace_bytes, cudaStream_t /*stream*/) {
  device_on_host::FakeLt& fake = device_on_host::fake_lt();
  fake.kernel = algorithm->config[0] * 1000 + algorithm->config[1];
  fake.compute = d->compute;
  fake.count = c_layout->count;
  fake.last_workspace = workspace_bytes;
  ++fake.products;
  using device_on_host::same_layout;
  const bool same_columns = same_layout(*b_layout, algorithm->b) && same_layout(*c_layout, algorithm->c);
  const bool was_checked = std::any_of(fake.checked.begin(), fake.checked.end(), [&](const auto& layouts) {
    return same_layout(*b_layout, layouts.first) && same_layout(*c_layout, layouts.second);
  });
  const auto aligned = [&](int which, const void* pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % algorithm->preference.alignment[which] == 0;
  };
  const cublasLtMatmulDescOpaque_t& chosen = algorithm->product;
  TORCH_CHECK(same_layout(*a_layout, algorithm->a) && (same_columns || was_checked) &&
                  chosen.compute == d->compute && chosen.transpose_a == d->transpose_a &&
                  chosen.transpose_b == d->transpose_b && chosen.epilogue == d->epilogue,
              "the algorithm was chosen for another problem");
  // Upstream, and so ops/linear, names the bias's alignment as that of D.
  const void* const fourth = d->epilogue == CUBLASLT_EPILOGUE_DEFAULT ? out : d->bias;
  TORCH_CHECK(aligned(0, a) && aligned(1, b) && aligned(2, c) && aligned(3, fourth),
              "the algorithm was chosen for other alignments");
  TORCH_CHECK(workspace_bytes >= fake.workspace && (fake.workspace == 0 || workspace != nullptr),
              "no workspace");
  if (!fake.runs) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (fake.workspace > 0) {
    std::memset(workspace, 0xff, fake.workspace);
  }
  const float factor = *static_cast<const float*>(alpha);
  const auto run = [&](auto of_operands, auto of_result) {
    return device_on_host::lt_products<decltype(of_operands), decltype(of_result)>(
        *d, factor, *static_cast<const float*>(beta), a, *a_layout, b, *b_layout, out, *c_layout);
  };
  const bool to_fp32 = c_layout->type == CUDA_R_32F;
  switch (a_layout->type) {
    case CUDA_R_16F:
      return to_fp32 ? run(c10::Half{}, float{}) : run(c10::Half{}, c10::Half{});
    case CUDA_R_16BF:
      return to_fp32 ? run(c10::BFloat16{}, float{}) : run(c10::BFloat16{}, c10::BFloat16{});
    default:
      return run(float{}, float{});
  }
}
