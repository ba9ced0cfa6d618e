// An override of gru_cell at the CPU key, for tests only: the same generated entries as at CUDA, where no GPU
// is.
#include <ATen/core/Tensor.h>
#include <ATen/ops/gru_cell_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

#include <atomic>

#include "ops/composite/overrides.h"

namespace aten_ext {
namespace {
std::atomic<int64_t> ran{0};
}  // namespace

Choice<cpu::CellPlan> cpu::choose(const args::gru_cell& a) {
  return a.input.scalar_type() == at::kDouble ? Choice<CellPlan>("dtype float64") : CellPlan{};
}

// A kernel of a backend: it sees plain tensors and computes on their memory.
Ran<at::Tensor> cpu::run(const args::gru_cell& a, const CellPlan& /*plan*/) {
  ++ran;
  for (const at::Tensor* t : {&a.input, &a.hx, &a.w_ih, &a.w_hh}) {
    TORCH_CHECK(t->const_data_ptr() != nullptr, "a kernel must never see a tensor without memory");
  }
  return at::compositeimplicitautograd::gru_cell(a.input, a.hx, a.w_ih, a.w_hh, a.b_ih, a.b_hh);
}

}  // namespace aten_ext

TORCH_LIBRARY_FRAGMENT(aten_ext_composite, m) {
  m.def("ran() -> int", [] { return aten_ext::ran.load(); });
}
