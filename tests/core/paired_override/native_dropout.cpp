#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include <atomic>

#include "core/registry.h"
#include "ops/paired/overrides.h"
#include "watch/watch.h"

namespace aten_ext {
namespace {

std::atomic<bool> refuses{false};

}  // namespace

Choice<cpu::DropoutPlan> cpu::choose(const args::native_dropout& a) {
  return a.input.scalar_type() == at::kFloat ? Choice<DropoutPlan>(DropoutPlan{}) : "not float32";
}

Ran<std::tuple<at::Tensor, at::Tensor>> cpu::run(const args::native_dropout& a, const DropoutPlan& /*plan*/) {
  return std::tuple(a.input.mul(2), at::full({1, a.input.numel()}, 7, a.input.options().dtype(at::kByte)));
}

bool cpu::saved_by_ours(const args::native_dropout_backward& a) {
  return a.mask.scalar_type() == at::kByte && a.mask.dim() == 2;
}

Choice<cpu::DropoutPlan> cpu::choose(const args::native_dropout_backward& a) {
  return a.grad_output.numel() == a.mask.size(1) ? Choice<DropoutPlan>(DropoutPlan{})
                                                 : "gradient of another size";
}

Ran<at::Tensor> cpu::run(const args::native_dropout_backward& a, const DropoutPlan& /*plan*/) {
  if (refuses) {
    return kRefused;
  }
  return a.grad_output.mul(3);
}

}  // namespace aten_ext

TORCH_LIBRARY_FRAGMENT(aten_ext_paired, m) {
  m.def("set_enabled",
        [](const std::string& name, bool enabled) { aten_ext::registry().set_enabled(name, enabled); });
  // ran, disabled, declined and late of an override.
  m.def("counts", [](const std::string& name) {
    std::vector<int64_t> result;
    for (const aten_ext::Override& row : aten_ext::registry()) {
      if (name == row.name) {
        int64_t declined = 0;
        for (const auto& [reason, count] : row.counts.declined()) {
          declined += static_cast<int64_t>(count);
        }
        result = {static_cast<int64_t>(row.counts.ran()), static_cast<int64_t>(row.counts.disabled()),
                  declined, static_cast<int64_t>(row.counts.late())};
      }
    }
    return result;
  });
  m.def("reset", [] {
    for (aten_ext::Override& row : aten_ext::registry()) {
      row.counts.reset();
      row.enabled = true;
    }
    aten_ext::refuses = false;
  });
  m.def("refuse", [] { aten_ext::refuses = true; });
  // A shadow session over every call.
  m.def("watch", [](bool on) {
    static uint64_t session = 0;
    if (on) {
      session = aten_ext::registry().watch->start_shadow(1.0, false);
    } else {
      aten_ext::registry().watch->stop(session);
    }
  });
}
