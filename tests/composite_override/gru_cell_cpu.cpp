// An override of gru_cell at the CPU key, for tests only: the same generated entries as at CUDA, where no GPU
// is.
#include <ATen/core/Tensor.h>
#include <ATen/ops/gru_cell_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include <atomic>

#include "overrides.h"

namespace aten_ext {
namespace {
std::atomic<int64_t> ran{0};
}  // namespace

const char* decline::gru_cell_cpu(const at::Tensor& input, const at::Tensor& /*hx*/,
                                  const at::Tensor& /*w_ih*/, const at::Tensor& /*w_hh*/,
                                  const std::optional<at::Tensor>& /*b_ih*/,
                                  const std::optional<at::Tensor>& /*b_hh*/) {
  return input.scalar_type() == at::kDouble ? "dtype float64" : nullptr;
}

// A kernel of a backend: it sees plain tensors and computes on their memory.
at::Tensor run::gru_cell_cpu(const at::Tensor& input, const at::Tensor& hx, const at::Tensor& w_ih,
                             const at::Tensor& w_hh, const std::optional<at::Tensor>& b_ih,
                             const std::optional<at::Tensor>& b_hh) {
  ++ran;
  for (const at::Tensor* t : {&input, &hx, &w_ih, &w_hh}) {
    TORCH_CHECK(t->const_data_ptr() != nullptr, "a kernel must never see a tensor without memory");
  }
  return at::compositeimplicitautograd::gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh);
}

}  // namespace aten_ext

TORCH_LIBRARY_FRAGMENT(aten_ext_composite, m) {
  m.def("ran() -> int", [] { return aten_ext::ran.load(); });
}
