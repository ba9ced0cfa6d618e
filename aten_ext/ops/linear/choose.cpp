// addmm, mm and _addmm_activation on CUDA: the kernel for few rows (few_rows_rule.h), and for the rest
// cuBLASLt with an algorithm that is remembered (lt.cpp).
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/declined.h"
#include "core/gpu.h"
#include "core/tables.h"
#include "core/to_dtype.h"
#include "ops/linear/call.h"
#include "ops/linear/crossover.h"
#include "ops/linear/few_rows_rule.h"
#include "ops/linear/overrides.h"
#include "ops/linear/rule.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/tunable/Tunable.h>
#endif

namespace aten_ext {
namespace {

using cuda::FewRowsPlan;
using cuda::LinearPlan;
using cuda::LtKey;
using cuda::LtPlan;
using cuda::LtReduction;

// Of both ways: clusters, and kernels of cuBLASLt that were compared with upstream's.
constexpr int kMinCode = 90;

bool has_rows(const at::Tensor& t) {
  return t.stride(1) == 1 && t.stride(0) >= t.size(1);
}

bool has_columns(const at::Tensor& t) {
  return t.stride(0) == 1 && t.stride(1) >= t.size(0);
}

// Upstream's switch, which it reads once, too.
bool upstream_has_lt() {
  static const bool answer = [] {
    const char* value = std::getenv("DISABLE_ADDMM_CUDA_LT");
    return value == nullptr || std::strcmp(value, "1") != 0;
  }();
  return answer;
}

const char* decline_tunable_op() {
#ifdef ATEN_EXT_WITH_CUDA
  if (at::cuda::tunable::getTuningContext()->IsTunableOpEnabled()) {
    return "TunableOp is on";
  }
#endif
  return nullptr;
}

uint8_t alignment_of(const void* pointer) {
  return cuda::log2_alignment(reinterpret_cast<uintptr_t>(pointer));
}

LtReduction to_reduction(at::CuBLASReductionOption option) {
  switch (option) {
    case at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK:
      return LtReduction::ComputeType;
    case at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK:
      return LtReduction::None;
    default:
      return LtReduction::Any;
  }
}

LtKey key_of(const LinearCall& call, const MatmulFlags& flags) {
  LtKey key{};
  key.m = call.m();
  key.n = call.n();
  key.k = call.k();
  key.mat1_is_transposed = !has_rows(call.mat1);
  key.mat2_is_transposed = !has_rows(call.mat2);
  key.mat1_stride = call.mat1.stride(key.mat1_is_transposed ? 1 : 0);
  key.mat2_stride = call.mat2.stride(key.mat2_is_transposed ? 1 : 0);
  key.device = call.mat1.device().index();
  key.dtype = to_dtype(call.mat1.scalar_type());
  key.epilogue = call.epilogue;
  if (key.dtype == Dtype::Float) {
    key.tf32 = flags.precision == at::Float32Precision::TF32;
  } else {
    key.reduction = to_reduction(flags.reduction);
  }
  key.mat1_alignment = alignment_of(call.mat1.const_data_ptr());
  key.mat2_alignment = alignment_of(call.mat2.const_data_ptr());
  key.bias_alignment = alignment_of(call.bias->const_data_ptr());
  // Not made yet: the allocator's memory is aligned to more than counts.
  key.out_alignment = alignment_of(call.out == nullptr ? nullptr : call.out->const_data_ptr());
  return key;
}

// Where upstream, too, lets cuBLASLt add the bias: elsewhere its bits are another kernel's.
const char* decline_lt(const LinearCall& call) {
  if (call.bias == nullptr) {
    // mm: upstream asks cuBLAS, which has other kernels, many of them faster in fp32 and with few rows.
    return "more than 64 rows";
  }
  if (!upstream_has_lt()) {
    return "DISABLE_ADDMM_CUDA_LT is set";
  }
  if (!is_bias_of_lt(call)) {
    return "many rows, and beta other than 1 or a bias that is no contiguous vector";
  }
  if (call.m() < 2 || call.n() < 2 || call.k() < 2) {
    return "dimension of 1 that cuBLASLt does not take";
  }
  for (const at::Tensor* t : {&call.mat1, &call.mat2}) {
    if (!has_rows(*t) && !has_columns(*t)) {
      return "many rows, and a matrix with neither rows nor columns contiguous";
    }
  }
  return call.out != nullptr && !call.out->is_contiguous() ? "many rows, and out that is not contiguous"
                                                           : nullptr;
}

// Of what the tables are asked about a call, and of what else declines it whatever the flags are. 0: it is
// not remembered.
uint64_t fingerprint_of(const LinearCall& call) {
  Fingerprint print;
  for (const at::Tensor* t : {&call.mat1, &call.mat2, call.bias, call.out}) {
    if (t != nullptr && !print.add(*t)) {
      return 0;
    }
    print.add(uint64_t{t != nullptr});
  }
  if (call.beta != nullptr && (call.beta->isComplex() || call.alpha->isComplex())) {
    return 0;
  }
  print.add(uint64_t{call.beta != nullptr && call.beta->toDouble() == 1.0} |
            static_cast<uint64_t>(call.epilogue) << 1);
  print.add(table_changes.load(std::memory_order_acquire));
  return print.value();
}

Choice<LinearPlan> choose_linear(const LinearCall& call) {
  thread_local Declined declined;
  const uint64_t fingerprint = fingerprint_of(call);
  if (const char* known = declined.reason(fingerprint)) {
    return known;
  }
  const at::Tensor& mat1 = call.mat1;
  const char* reason = decline_operands(call);
  reason = reason != nullptr ? reason : decline_scalars(call);
  if (reason != nullptr) {
    return reason;
  }
  const Gpu& gpu = gpu_of(mat1.device());
  if (reason = lacks(gpu, Needs{kMinCode}); reason != nullptr) {
    return reason;
  }
  // Sizes and layouts first: the flags are read in a dozen places, and a call that ends up upstream shall not
  // wait for them.
  FewRowsPlan few_rows;
  const char* no_few_rows = take_few_rows(call, few_rows);
  if (no_few_rows == nullptr) {
    no_few_rows = cut_by_tables(call, gpu, few_rows);
  }
  const char* no_lt = decline_lt(call);
  const bool is_float = mat1.scalar_type() == at::kFloat;
  if (no_lt == nullptr && upstream_asks_lt_faster(call.m(), call.n(), call.k(), is_float)) {
    no_lt = "many rows, and a small float32 weight";
  }
  // Of two reasons, the one of the way that was meant for so many rows.
  const bool meant_few_rows = call.m() <= cuda::few_rows::kMaxRows;
  if (no_few_rows != nullptr && no_lt != nullptr) {
    reason = meant_few_rows ? no_few_rows : no_lt;
    // Without evidence both tables said so, and it is declined in a graph and outside.
    if (few_rows.evidence == nullptr) {
      declined.add(fingerprint, reason);
    }
    return reason;
  }
  reason = decline_flags(mat1.scalar_type());
  reason = reason != nullptr ? reason : decline_tunable_op();
  if (reason != nullptr) {
    return reason;
  }
  const MatmulFlags flags = read_flags(mat1.scalar_type());
  no_few_rows = no_few_rows != nullptr ? no_few_rows : decline_few_rows_flags(few_rows.dtype, flags);
  if (no_few_rows == nullptr) {
    return LinearPlan{few_rows};
  }
  if (no_lt == nullptr) {
    return LinearPlan{LtPlan{key_of(call, flags), to_float(call.alpha, 1.0f)}};
  }
  return meant_few_rows ? no_few_rows : no_lt;
}

}  // namespace

const char* plan_lt(const LinearCall& call, const MatmulFlags& flags, LtPlan& plan) {
  if (const char* reason = decline_lt(call)) {
    return reason;
  }
  plan = {key_of(call, flags), to_float(call.alpha, 1.0f)};
  return nullptr;
}

std::string LinearPlan::describe() const {
  const auto* few_rows = std::get_if<FewRowsPlan>(&way);
  if (few_rows == nullptr) {
    return "cuBLASLt with an algorithm that is remembered";
  }
  const std::string source = few_rows->evidence != nullptr ? "; " + few_rows->evidence->source : "";
  const cuda::gemv::Plan& dots = few_rows->dots;
  if (dots.rows != 0) {
    return "few rows: dot products, " + std::to_string(dots.columns) +
           (dots.columns == 1 ? " column" : " columns") + " in " + std::to_string(dots.warps) +
           (dots.warps == 1 ? " warp" : " warps") + source;
  }
  const cuda::few_rows::Plan& tiles = few_rows->tiles;
  return "few rows: tiles of " + std::to_string(tiles.rows) + " x " +
         std::to_string(cuda::few_rows::columns_of(tiles)) + ", " + std::to_string(tiles.splits) +
         (tiles.splits == 1 ? " block" : " blocks") + " a tile" +
         (tiles.alone ? ", one a multiprocessor" : "") +
         (few_rows->vectors ? "" : ", rows of no whole vectors") + source;
}

Needs LinearPlan::needs() const {
  Needs needs;
  needs.code = kMinCode;
  const auto* few_rows = std::get_if<FewRowsPlan>(&way);
  if (few_rows != nullptr && few_rows->dots.rows == 0) {
    const cuda::few_rows::Plan& tiles = few_rows->tiles;
    const cuda::few_rows::Operands operands{few_rows->dtype == Dtype::Float, few_rows->mat2_is_transposed,
                                            few_rows->vectors};
    needs.shared_bytes = cuda::few_rows::smem_bytes(tiles.rows, tiles.groups, tiles.alone, operands);
    while (needs.cluster < tiles.splits) {
      needs.cluster *= 2;  // where a cluster of 4 finds room, one of 3 does
    }
  }
  return needs;
}

Choice<LinearPlan> cuda::choose(const args::addmm& a) {
  return choose_linear(call_of(a));
}
Choice<LinearPlan> cuda::choose(const args::addmm_out& a) {
  return choose_linear(call_of(a));
}
Choice<LinearPlan> cuda::choose(const args::_addmm_activation& a) {
  return choose_linear(call_of(a));
}
Choice<LinearPlan> cuda::choose(const args::_addmm_activation_out& a) {
  return choose_linear(call_of(a));
}
Choice<LinearPlan> cuda::choose(const args::mm& a) {
  return choose_linear(call_of(a));
}
Choice<LinearPlan> cuda::choose(const args::mm_out& a) {
  return choose_linear(call_of(a));
}

}  // namespace aten_ext
