// Plans of the linear layers' kernel for few rows by themselves: without the crossover, or as a test wants
// them; and a flag that changes between the decision and the run.
#include <ATen/Context.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/tables.h"
#include "ops/linear/call.h"
#include "ops/linear/crossover.h"
#include "ops/linear/few_rows.h"
#include "ops/linear/overrides.h"
#include "ops/linear/rule.h"
#include "runtime.h"

namespace {

namespace few_rows = aten_ext::cuda::few_rows;
using aten_ext::Epilogue;
using aten_ext::LinearCall;

// `tiles`: groups, splits and whether a block is alone on its multiprocessor; `dots`: warps, columns and
// steps. Both empty: what the policy chooses.
aten_ext::cuda::LinearPlan plan_of(const LinearCall& call, at::IntArrayRef tiles, at::IntArrayRef dots) {
  const char* reason = aten_ext::decline_operands(call);
  TORCH_CHECK(reason == nullptr, "declined: ", reason);
  aten_ext::cuda::FewRowsPlan plan{};
  const auto flags = aten_ext::read_flags(call.mat1.scalar_type());
  const aten_ext::Gpu& gpu = aten_ext::gpu_of(call.mat1.device());
  reason = aten_ext::plan_few_rows(call, flags, gpu, plan);
  TORCH_CHECK(reason == nullptr, "declined: ", reason);
  if (!tiles.empty()) {
    const few_rows::Layer layer{static_cast<int>(call.m()),
                                static_cast<int>(call.n()),
                                static_cast<int>(call.k()),
                                plan.dtype == aten_ext::Dtype::Float,
                                plan.mat2_is_transposed,
                                {gpu.multiprocessors, gpu.shared_bytes, gpu.clusters},
                                plan.vectors};
    plan.dots = {};
    plan.tiles =
        few_rows::make_plan(layer, static_cast<int>(tiles[0]), static_cast<int>(tiles[1]), tiles[2] != 0);
  }
  if (!dots.empty()) {
    const int rows = aten_ext::cuda::gemv::rows_of(static_cast<int>(call.m()));
    plan.dots = {rows, static_cast<int>(dots[0]), static_cast<int>(dots[1]), static_cast<int>(dots[2]), true};
  }
  return {plan};
}

at::Tensor run_few_rows(const std::optional<at::Tensor>& bias, const at::Tensor& mat1, const at::Tensor& mat2,
                        const at::Scalar& beta, const at::Scalar& alpha, int64_t epilogue,
                        at::IntArrayRef tiles, at::IntArrayRef dots, std::optional<at::Tensor> out) {
  const at::Tensor* given = bias.has_value() ? &*bias : nullptr;
  LinearCall call{given, mat1, mat2, out.has_value() ? &*out : nullptr, static_cast<Epilogue>(epilogue)};
  if (given != nullptr) {
    call.beta = &beta;
    call.alpha = &alpha;
  }
  const auto plan = plan_of(call, tiles, dots);
  namespace cuda = aten_ext::cuda;
  if (out.has_value()) {
    auto ran = given == nullptr
                   ? cuda::run(aten_ext::args::mm_out{mat1, mat2, *out}, plan)
                   : cuda::run(aten_ext::args::addmm_out{*bias, mat1, mat2, beta, alpha, *out}, plan);
    TORCH_CHECK(!ran.refused(), "declined late");
    return ran.take();
  }
  auto ran = given == nullptr ? cuda::run(aten_ext::args::mm{mat1, mat2}, plan)
                              : cuda::run(aten_ext::args::addmm{*bias, mat1, mat2, beta, alpha}, plan);
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

// cuBLASLt's way, whether or not upstream would be faster.
at::Tensor run_lt(const at::Tensor& bias, const at::Tensor& mat1, const at::Tensor& mat2,
                  const at::Scalar& alpha, int64_t epilogue, at::Tensor out) {
  const at::Scalar beta = 1;
  const LinearCall call{&bias, mat1, mat2, &out, static_cast<Epilogue>(epilogue), &beta, &alpha};
  const char* reason = aten_ext::decline_operands(call);
  aten_ext::cuda::LtPlan plan;
  const auto flags = aten_ext::read_flags(mat1.scalar_type());
  reason = reason != nullptr ? reason : aten_ext::plan_lt(call, flags, plan);
  TORCH_CHECK(reason == nullptr, "declined: ", reason);
  auto ran = aten_ext::cuda::run(aten_ext::args::addmm_out{bias, mat1, mat2, beta, alpha, out}, {plan});
  TORCH_CHECK(!ran.refused(), "declined late");
  return ran.take();
}

// The way is chosen, then float32 precision changes, then the choice is carried out.
at::Tensor mm_while_tf32_is_allowed(const at::Tensor& mat1, const at::Tensor& mat2) {
  const aten_ext::args::mm arguments{mat1, mat2};
  const auto choice = aten_ext::cuda::choose(arguments);
  TORCH_CHECK(choice.reason() == nullptr, "declined: ", choice.reason());
  at::Context& context = at::globalContext();
  const bool before = context.allowTF32CuBLAS();
  context.setAllowTF32CuBLAS(true);
  auto ran = aten_ext::cuda::run(arguments, choice.plan());
  context.setAllowTF32CuBLAS(before);
  return ran.take();
}

}  // namespace

namespace {

// From now on the tables say that ours is faster by so many percent, whatever the shape; in graphs by others,
// if they are given. 0: there is no table.
void pretend_table(int64_t percent, std::optional<int64_t> in_graphs) {
  int64_t cells = 1;
  for (const int64_t size : aten_ext::crossover::kShape) {
    cells *= size;
  }
  const aten_ext::Gpu& gpu = aten_ext::reference_gpu();
  using aten_ext::TableFamily;
  const std::pair<TableFamily, int64_t> all[] = {{TableFamily::Linear, percent},
                                                 {TableFamily::LinearInGraphs, in_graphs.value_or(percent)},
                                                 {TableFamily::LinearInL2, percent}};
  for (const auto& [family, value] : all) {
    const std::vector<uint8_t> table(static_cast<size_t>(cells), static_cast<uint8_t>(value));
    aten_ext::remove_table(family, gpu.name, gpu.multiprocessors);
    if (value != 0) {
      aten_ext::add_table(family, gpu.name, gpu.capability, gpu.multiprocessors, true, table.data(),
                          table.size());
    }
  }
}

bool is_behind_another_kernel() {
  return aten_ext::cuda::is_behind_another_kernel(c10::cuda::getCurrentCUDAStream());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_linear, m) {
  // Whether there is a kernel of dot products for so many rows, warps, columns and steps.
  m.def("has_dots(int rows, int warps, int columns, int steps) -> bool",
        [](int64_t rows, int64_t warps, int64_t columns, int64_t steps) {
          return aten_ext::cuda::gemv::is_plan(static_cast<int>(rows), static_cast<int>(warps),
                                               static_cast<int>(columns), static_cast<int>(steps));
        });
  m.def("is_behind_another_kernel() -> bool", is_behind_another_kernel);
  m.def("pretend_table(int percent, int? in_graphs=None) -> ()", pretend_table);
  m.def(
      "few_rows(Tensor? bias, Tensor mat1, Tensor mat2, Scalar beta=1, Scalar alpha=1, int epilogue=0, "
      "int[] tiles=[], int[] dots=[], Tensor? out=None) -> Tensor",
      run_few_rows);
  m.def("lt(Tensor bias, Tensor mat1, Tensor mat2, Scalar alpha, int epilogue, Tensor out) -> Tensor",
        run_lt);
  m.def("mm_while_tf32_is_allowed", mm_while_tf32_is_allowed);
  // How often cuBLAS was asked for.
  m.def("blas_handles() -> int", [] { return int64_t{device_on_host::device().blas_handles}; });
  // The plan in words.
  m.def("choose", [](const at::Tensor& bias, const at::Tensor& mat1, const at::Tensor& mat2) -> std::string {
    const auto choice = aten_ext::cuda::choose(aten_ext::args::addmm{bias, mat1, mat2, 1, 1});
    TORCH_CHECK(choice.reason() == nullptr, "declined: ", choice.reason());
    return choice.plan().describe();
  });
}
