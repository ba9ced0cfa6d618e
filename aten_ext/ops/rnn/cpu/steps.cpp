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

void StepProduct::make(const at::Tensor& from) {
  if (!narrow_from_.defined()) {
    at::mm_out(product_, from, w_);
    return;
  }
  narrow_from_.copy_(from);
  at::mm_out(narrow_product_, narrow_from_, w_);
  product_.copy_(narrow_product_);
}

}  // namespace aten_ext::cpu
