// cuBLASLt with a compute type that each product names. A handle of cuBLAS carries the settings of PyTorch's
// own matrix products (TF32, reductions, accumulation in fp16), and at::mm raises for some of them: none of
// that is an RNN's, whose precision is cuDNN's setting alone. The handle here is our own, one for each
// device: cuBLASLt's hold no stream and no settings, and threads share them.
//
// The workspace comes from the caching allocator for the one call, on the current stream: safe among streams
// and under capture, and nothing is left behind. cuBLAS keeps one for each thread and stream.
//
// The heuristic's answer is remembered for everything that the question depends on. A part of a product (some
// steps of a sequence) takes the whole one's algorithm, so that its sums are added up in the same order.
#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/lt_product.h"

#include <ATen/core/Tensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <type_traits>

#include "core/device_cache.h"
#include "core/lru_cache.h"

namespace aten_ext::cuda {
namespace {

constexpr size_t kMaxWorkspace = size_t{32} << 20;
// Products that a thread remembers: sequences of many lengths ask for many. Less than a kilobyte each.
constexpr size_t kProducts = 256;

// Answers to choose from, the best first by cuBLASLt's own estimate.
constexpr int kAnswers = 10;
// Of fp32 that estimate is wrong where a product is small: it splits 160 columns into 264 parts, which takes
// 50 us where others take 6. Few columns are not split, a part has so many at least, and only of many columns
// are there more than so many parts.
constexpr int64_t kFewColumns = 128;
constexpr int64_t kPartColumns = 8;
constexpr int64_t kManyColumns = 2048;
constexpr int64_t kParts = 33;

// All that the heuristic's answer depends on.
struct Key {
  int64_t m, n, k;
  int64_t n_of_all;
  int64_t count, w_stride, rows_stride, to_stride, rows_length;
  int16_t device;
  Dtype dtype;
  bool tf32;
  bool rows_by_column, w_by_column, in_dtype, adds;
  uint8_t rows_alignment, w_alignment, to_alignment;  // see log2_alignment
  uint8_t unused[5];                                  // padding with a name: zero
};

// Plain memory: descriptors are initialised in place and need no destruction.
struct Prepared {
  cublasLtMatmulDescOpaque_t description;
  cublasLtMatrixLayoutOpaque_t w, rows, to;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;  // in bytes
  bool usable;
};

struct DestroyLt {
  void operator()(cublasLtHandle_t handle) const {
    (void)cublasLtDestroy(handle);
  }
};
using LtHandle = std::unique_ptr<std::remove_pointer_t<cublasLtHandle_t>, DestroyLt>;

// nullptr: cuBLASLt could not be initialised, and is not asked again.
cublasLtHandle_t handle_of(c10::Device device) {
  static DeviceCache<LtHandle> handles;
  return handles
      .get(device,
           [](c10::Device /*current*/) {
             // The first call may be under capture, where memory is allocated by this thread's own leave.
             const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
             cublasLtHandle_t handle = nullptr;
             return LtHandle(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS ? handle : nullptr);
           })
      .get();
}

// The logarithm of the alignment of an address, or of a distance, in bytes, of 256 at most.
uint8_t log2_alignment(uintptr_t address) {
  uint8_t exponent = 0;
  while (exponent < 8 && address % (uintptr_t{2} << exponent) == 0) {
    ++exponent;
  }
  return exponent;
}

int64_t element_bytes(Dtype dtype) {
  return dtype == Dtype::Float ? sizeof(float) : sizeof(uint16_t);
}

// Elements from one line of rows to the next.
int64_t rows_length(const LtProduct& product) {
  return product.rows_length != 0 ? product.rows_length : product.rows_by_column ? product.n : product.k;
}

// That of rows, one behind the other: the same wherever a part of them begins.
uint8_t rows_alignment(const LtProduct& product) {
  return std::min(log2_alignment(reinterpret_cast<uintptr_t>(product.rows)),
                  log2_alignment(rows_length(product) * element_bytes(product.dtype)));
}

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

template <typename T>
bool set(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  return cublasLtMatmulDescSetAttribute(descriptor, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}
template <typename T>
bool set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const T& value) {
  return cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS;
}
template <typename T>
bool set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)) ==
         CUBLAS_STATUS_SUCCESS;
}

// A matrix of ours of so many rows and columns, of a batch: cuBLAS counts by columns, and so has its
// transpose. `length`: elements from one line to the next, 0 if none lies between them.
bool set_matrix(cublasLtMatrixLayout_t layout, cudaDataType_t type, int64_t rows, int64_t columns,
                bool by_column, const Key& key, int64_t stride, int64_t length = 0) {
  const int64_t of_line = by_column ? rows : columns;
  const int64_t lines = by_column ? columns : rows;
  return cublasLtMatrixLayoutInit(layout, type, of_line, lines, length == 0 ? of_line : length) ==
             CUBLAS_STATUS_SUCCESS &&
         set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(key.count)) &&
         set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride);
}

// Its A is w, transposed, its B the rows and its C the transposed result.
bool describe(const Key& key, int64_t n, Prepared& prepared) {
  const cudaDataType_t type = data_type(key.dtype);
  return cublasLtMatmulDescInit(&prepared.description,
                                key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         set(&prepared.description, CUBLASLT_MATMUL_DESC_TRANSA,
             key.w_by_column ? CUBLAS_OP_N : CUBLAS_OP_T) &&
         set(&prepared.description, CUBLASLT_MATMUL_DESC_TRANSB,
             key.rows_by_column ? CUBLAS_OP_T : CUBLAS_OP_N) &&
         set_matrix(&prepared.w, type, key.m, key.k, key.w_by_column, key, key.w_stride) &&
         set_matrix(&prepared.rows, type, n, key.k, key.rows_by_column, key, key.rows_stride,
                    key.rows_length) &&
         set_matrix(&prepared.to, key.in_dtype ? type : CUDA_R_32F, n, key.m, false, key,
                    key.to_stride == 0 ? n * key.m : key.to_stride);
}

// Into how many parts an algorithm splits the columns; 1, or less where it has none of this: it does not.
int32_t parts_of(const cublasLtMatmulHeuristicResult_t& answer) {
  int32_t parts = 1;
  size_t written = 0;
  return cublasLtMatmulAlgoConfigGetAttribute(&answer.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                              sizeof(parts), &written) == CUBLAS_STATUS_SUCCESS
             ? parts
             : 1;
}

// The first answer that splits no more than pays; if all do, the one that splits least.
const cublasLtMatmulHeuristicResult_t& best_of(const cublasLtMatmulHeuristicResult_t* answers, int count,
                                               const Key& key) {
  if (key.dtype != Dtype::Float) {
    return answers[0];
  }
  const int64_t most = key.k <= kFewColumns    ? 1
                       : key.k <= kManyColumns ? std::min(key.k / kPartColumns, kParts)
                                               : key.k / kPartColumns;
  const auto* const end = answers + count;
  const auto* const found = std::find_if(
      answers, end, [&](const cublasLtMatmulHeuristicResult_t& answer) { return parts_of(answer) <= most; });
  return found != end ? *found : *std::min_element(answers, end, [](const auto& a, const auto& b) {
    return parts_of(a) < parts_of(b);
  });
}

bool choose_algorithm(cublasLtHandle_t handle, const Key& key, Prepared& prepared) {
  const auto bytes = [](uint8_t log2) { return uint32_t{1} << log2; };
  cublasLtMatmulPreferenceOpaque_t preference;
  std::array<cublasLtMatmulHeuristicResult_t, kAnswers> answers{};
  int count = 0;
  if (cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
      !set(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace) ||
      !set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(key.w_alignment)) ||
      !set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(key.rows_alignment)) ||
      !set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(key.to_alignment)) ||
      !set(&preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(key.to_alignment)) ||
      cublasLtMatmulAlgoGetHeuristic(handle, &prepared.description, &prepared.w, &prepared.rows, &prepared.to,
                                     &prepared.to, &preference, kAnswers, answers.data(),
                                     &count) != CUBLAS_STATUS_SUCCESS ||
      count == 0) {
    return false;
  }
  const cublasLtMatmulHeuristicResult_t& answer = best_of(answers.data(), count, key);
  prepared.algorithm = answer.algo;
  prepared.workspace = answer.workspaceSize;
  return true;
}

// Whether the algorithm, chosen for all rows, takes these too; how much workspace it then wants.
bool takes_part(cublasLtHandle_t handle, Prepared& prepared) {
  cublasLtMatmulHeuristicResult_t answer{};
  if (cublasLtMatmulAlgoCheck(handle, &prepared.description, &prepared.w, &prepared.rows, &prepared.to,
                              &prepared.to, &prepared.algorithm, &answer) != CUBLAS_STATUS_SUCCESS ||
      answer.workspaceSize > kMaxWorkspace) {
    return false;
  }
  prepared.workspace = answer.workspaceSize;
  return true;
}

void prepare(cublasLtHandle_t handle, const Key& key, Prepared& prepared) {
  prepared = {};
  if (key.n < key.n_of_all && describe(key, key.n_of_all, prepared) &&
      choose_algorithm(handle, key, prepared) && describe(key, key.n, prepared) &&
      takes_part(handle, prepared)) {
    prepared.usable = true;
    return;
  }
  prepared.usable = describe(key, key.n, prepared) && choose_algorithm(handle, key, prepared);
}

}  // namespace

bool run_lt_product(const LtProduct& product, cudaStream_t stream) {
  const c10::Device device(c10::kCUDA, c10::cuda::current_device());
  const cublasLtHandle_t handle = handle_of(device);
  static thread_local LruCache<Key, Prepared> products(kProducts);
  const Key key{product.m,
                product.n,
                product.k,
                product.n_of_all,
                product.count,
                product.w_stride,
                product.rows_stride,
                product.to_stride,
                product.rows_length,
                device.index(),
                product.dtype,
                product.tf32,
                product.rows_by_column,
                product.w_by_column,
                product.in_dtype,
                product.adds,
                rows_alignment(product),
                log2_alignment(reinterpret_cast<uintptr_t>(product.w)),
                log2_alignment(reinterpret_cast<uintptr_t>(product.to)),
                {}};
  Prepared& prepared = products.get(key, [&](Prepared& made) { prepare(handle, key, made); });
  if (!prepared.usable) {
    return false;
  }
  at::Tensor workspace;
  if (prepared.workspace > 0) {
    workspace = at::Tensor(
        at::detail::empty_cuda({static_cast<int64_t>(prepared.workspace)}, at::kByte, device, std::nullopt));
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  return cublasLtMatmul(handle, &prepared.description, &one, product.w, &prepared.w, product.rows,
                        &prepared.rows, product.adds ? &one : &zero, product.to, &prepared.to, product.to,
                        &prepared.to, &prepared.algorithm,
                        workspace.defined() ? workspace.mutable_data_ptr() : nullptr, prepared.workspace,
                        stream) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
