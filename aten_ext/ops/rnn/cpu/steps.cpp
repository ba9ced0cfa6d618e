#include "ops/rnn/cpu/steps.h"

#include <ATen/ops/mm.h>

#include "ops/rnn/cpu/product.h"

namespace aten_ext::cpu {

StepProduct::StepProduct(const at::Tensor& w, int64_t rows)
    : w_(multiplies_bfloat16() ? w : w.to(at::kFloat)),
      product_(at::empty({rows, w.size(1)}, w.options().dtype(at::kFloat))) {
  if (w_.scalar_type() != at::kFloat) {
    narrow_from_ = at::empty({rows, w.size(0)}, w.options());
    narrow_product_ = at::empty({rows, w.size(1)}, w.options());
  }
}

void StepProduct::make(const at::Tensor& from, int64_t row) {
  const int64_t count = from.size(0);
  if (count == 0) {
    return;
  }
  at::Tensor product = product_.narrow(0, row, count);
  if (!narrow_from_.defined()) {
    multiply_to(product, from, w_);
    return;
  }
  at::Tensor narrow_product = narrow_product_.narrow(0, 0, count);
  at::mm_out(narrow_product, narrow_from_.narrow(0, 0, count).copy_(from), w_);
  product.copy_(narrow_product);
}

}  // namespace aten_ext::cpu
