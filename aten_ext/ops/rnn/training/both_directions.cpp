#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/both_directions.h"

namespace aten_ext::cuda {
namespace {

// The stride of a batch is not negative, whole vectors, and less than 2^40 bytes: what Hopper's copy engine
// takes, which products there read with.
constexpr uintptr_t kMostDistance = uintptr_t{1} << 38;
constexpr uintptr_t kVectorBytes = 16;

bool is_stride(const void* first, const void* second) {
  const auto from = reinterpret_cast<uintptr_t>(first);
  const auto to = reinterpret_cast<uintptr_t>(second);
  return from <= to && from % kVectorBytes == 0 && to % kVectorBytes == 0 && to - from <= kMostDistance;
}

int64_t elements_between(const void* first, const void* second, int64_t bytes) {
  return (static_cast<const char*>(second) - static_cast<const char*>(first)) / bytes;
}

}  // namespace

bool run_products(LtProduct product, const Operands& o, int directions, bool apart, cudaStream_t stream) {
  product.n_of_all = product.n;
  product.count = 1;
  product.rows = o.rows[0];
  product.w = o.w[0];
  product.to = o.to[0];
  if (directions == 1) {
    return run_lt_product(product, stream);
  }
  if (!apart && is_stride(o.rows[0], o.rows[1]) && is_stride(o.w[0], o.w[1]) && o.to[0] != o.to[1] &&
      is_stride(o.to[0], o.to[1])) {
    const int64_t bytes = product.dtype == Dtype::Float ? 4 : 2;
    product.count = 2;
    product.rows_stride = elements_between(o.rows[0], o.rows[1], bytes);
    product.w_stride = elements_between(o.w[0], o.w[1], bytes);
    product.to_stride = elements_between(o.to[0], o.to[1], product.in_dtype ? bytes : 4);
    return run_lt_product(product, stream);
  }
  if (!run_lt_product(product, stream)) {
    return false;
  }
  product.rows = o.rows[1];
  product.w = o.w[1];
  product.to = o.to[1];
  return run_lt_product(product, stream);
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
