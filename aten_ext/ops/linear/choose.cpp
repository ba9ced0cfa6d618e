// addmm, mm and _addmm_activation on CUDA: the kernel for few rows (few_rows.cu), and for the rest cuBLASLt
// with an algorithm that is remembered (lt.cpp).
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "core/capture.h"
#include "core/declined.h"
#include "core/gpu.h"
#include "core/tables.h"
#include "core/to_dtype.h"
#include "ops/linear/call.h"
#include "ops/linear/crossover.h"
#include "ops/linear/overrides.h"
#include "ops/linear/rule.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <ATen/cuda/tunable/Tunable.h>
#include <c10/cuda/CUDAStream.h>

#include "ops/linear/few_rows.h"
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

float to_float(const at::Scalar* scalar, float otherwise) {
  return scalar == nullptr ? otherwise : scalar->toFloat();
}

bool is_aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
}

// Whether a step of so many elements keeps an aligned address aligned.
bool keeps_aligned(const at::Tensor& t, int64_t elements) {
  return elements * static_cast<int64_t>(t.element_size()) % 16 == 0;
}

// Rows of [rows, columns]: elements side by side, each row on an aligned address.
bool has_aligned_rows(const at::Tensor& t, int64_t row, int64_t column) {
  return (t.size(column) == 1 || t.stride(column) == 1) &&
         (t.size(row) == 1 || (t.stride(row) >= t.size(column) && keeps_aligned(t, t.stride(row)))) &&
         keeps_aligned(t, t.size(column)) && is_aligned(t);
}

// Rows of [rows, columns]: elements side by side, wherever rows begin.
bool has_apart_rows(const at::Tensor& t, int64_t row, int64_t column) {
  return (t.size(column) == 1 || t.stride(column) == 1) &&
         (t.size(row) == 1 || t.stride(row) >= t.size(column));
}

// Whether all rows begin at multiples of 4 bytes.
bool has_rows_of_words(const at::Tensor& t, int64_t row) {
  constexpr int64_t kWord = 4;
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % kWord == 0 &&
         (t.size(row) == 1 || t.stride(row) * static_cast<int64_t>(t.element_size()) % kWord == 0);
}

// Bytes that the rows of a matrix are aligned to, up to a line of the cache, if it is a part of a larger one
// or of a buffer. (Of dense rows the depth says it, as it does of the weight's.)
int64_t alignment_of_part(const at::Tensor& t) {
  const uintptr_t apart = t.size(0) > 1 && t.stride(0) != t.size(1) ? t.stride(0) * t.element_size() : 0;
  const uintptr_t bits = crossover::kLine | reinterpret_cast<uintptr_t>(t.const_data_ptr()) | apart;
  return t.size(0) == 1 ? crossover::kLine : static_cast<int64_t>(bits & -bits);
}

// A bias that is as large as the result. addmm's overloads with out_dtype, which are upstream's, round the
// product before they add it; in 16 bits that shows.
bool is_whole_matrix(const LinearCall& call) {
  return call.bias != nullptr && call.bias->dim() == 2 && call.bias->size(0) == call.m() &&
         call.bias->size(1) == call.n();
}

// Whether upstream lets cuBLASLt add the bias. Anything else it copies into the result first.
bool is_bias_of_lt(const LinearCall& call) {
  const at::Tensor* bias = call.bias;
  return bias != nullptr && call.beta->toDouble() == 1.0 && bias->dim() == 1 && bias->size(0) == call.n() &&
         bias->is_contiguous();
}

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

// Whether the kernel takes a call of such sizes and layouts: everything of its plan but the tiles.
const char* take_few_rows(const LinearCall& call, FewRowsPlan& plan) {
  if (call.m() > cuda::few_rows::kMaxRows) {
    return "more than 64 rows";
  }
  if (!has_apart_rows(call.mat1, 0, 1)) {
    return "mat1 whose rows are not contiguous";
  }
  // As nn.Linear gives it: the transposed view of [N, K]. Where one side is 1 it may be either: then by whole
  // vectors, if it can be.
  const bool aligned = has_aligned_rows(call.mat2, 1, 0);
  plan.vectors = has_aligned_rows(call.mat1, 0, 1) && (aligned || has_aligned_rows(call.mat2, 0, 1));
  plan.mat2_is_transposed = plan.vectors ? aligned : has_apart_rows(call.mat2, 1, 0);
  if (!plan.mat2_is_transposed && !has_apart_rows(call.mat2, 0, 1)) {
    return "mat2 with neither rows nor columns contiguous";
  }
  if (call.out != nullptr &&
      ((call.n() > 1 && call.out->stride(1) != 1) || (call.m() > 1 && call.out->stride(0) < call.n()))) {
    return "out whose rows are not contiguous";
  }
  plan.dtype = to_dtype(call.mat1.scalar_type());
  if (plan.dtype != Dtype::Float && is_whole_matrix(call) && call.beta->toFloat() != 0.0f) {
    return "16 bits, and a matrix to add";
  }
  plan.epilogue = call.epilogue;
  plan.alpha = to_float(call.alpha, 1.0f);
  plan.beta = to_float(call.beta, 0.0f);
  return nullptr;
}

const char* decline_few_rows_flags(Dtype dtype, const MatmulFlags& flags) {
  if (dtype == Dtype::Float) {
    return flags.precision != at::Float32Precision::NONE && flags.precision != at::Float32Precision::IEEE
               ? "float32 precision other than IEEE is allowed"
               : nullptr;
  }
  return flags.reduction == at::CuBLASReductionOption::DisallowReducedPrecisionDisallowSplitK
             ? "split K is not allowed"
             : nullptr;
}

cuda::few_rows::Layer few_rows_layer(const LinearCall& call, const Gpu& gpu, const FewRowsPlan& plan) {
  return {static_cast<int>(call.m()),
          static_cast<int>(call.n()),
          static_cast<int>(call.k()),
          plan.dtype == Dtype::Float,
          plan.mat2_is_transposed,
          {gpu.multiprocessors, gpu.shared_bytes, gpu.clusters, gpu.l2_bytes},
          plan.vectors};
}

// Which of the layouts that were measured a call has.
crossover::Layout layout_of(const LinearCall& call, const FewRowsPlan& plan) {
  using crossover::Layout;
  const bool transposed = plan.mat2_is_transposed;
  if (!plan.vectors) {
    const bool words = has_rows_of_words(call.mat1, 0) && has_rows_of_words(call.mat2, transposed ? 1 : 0);
    const bool even = call.k() % 2 == 0 && call.n() % 2 == 0 && words;
    return transposed ? (even ? Layout::TransposedWords : Layout::TransposedHalves)
                      : (even ? Layout::RowMajorWords : Layout::RowMajorHalves);
  }
  return !transposed                          ? Layout::RowMajor
         : keeps_aligned(call.mat1, call.n()) ? Layout::Transposed
         : call.n() % 2 == 0                  ? Layout::TransposedEven
                                              : Layout::TransposedOdd;
}

struct Tiles {
  cuda::few_rows::Layer layer{};  // of no rows: none yet
  cuda::gemv::Plan dots{};        // of no rows: in tiles
  cuda::few_rows::Plan plan{};
};

// The tiles of a layer. This thread's last ones are kept: to choose them takes the host up to 0.7 us, and a
// program asks for the same layers again.
const Tiles& tiles_of(const cuda::few_rows::Layer& layer) {
  constexpr size_t kPlaces = 64;
  thread_local std::array<Tiles, kPlaces> kept;
  Tiles& place = kept[static_cast<size_t>(layer.m + layer.n + layer.k) % kPlaces];
  if (!are_equal(place.layer, layer)) {
    const cuda::gemv::Plan dots = cuda::gemv::choose_plan(layer);
    place = {layer, dots, dots.rows != 0 ? cuda::few_rows::Plan{} : cuda::few_rows::choose_plan(layer)};
  }
  return place;
}

const char* decline_tiles(const Tiles& tiles) {
  return tiles.dots.rows == 0 && tiles.plan.rows == 0 ? "GPU with too little shared memory for the kernel"
                                                      : nullptr;
}

// The layer that a call asks the tables for. Where upstream copies what is added, its product is that of a
// layer without a bias.
crossover::Layer crossover_layer(const LinearCall& call, const FewRowsPlan& plan, bool by_dots) {
  const bool bias = is_bias_of_lt(call);
  const bool whole_rows = keeps_aligned(call.mat1, call.k()) &&
                          keeps_aligned(call.mat2, plan.mat2_is_transposed ? call.k() : call.n());
  return {call.m(),
          call.n(),
          call.k(),
          plan.dtype == Dtype::Float,
          plan.dtype == Dtype::Half,
          bias,
          layout_of(call, plan),
          alignment_of_part(call.mat1),
          call.epilogue == Epilogue::ReLU,
          whole_rows && !plan.vectors,
          by_dots};
}

// Whether a call becomes a part of a graph, behind another kernel. A device that is no GPU stands for one
// where all captured calls do (core/capture.h).
bool is_between_others(c10::Device device) {
#ifdef ATEN_EXT_WITH_CUDA
  if (device.is_cuda()) {
    return cuda::is_behind_another_kernel(c10::cuda::getCurrentCUDAStream(device.index()));
  }
#endif
  return is_capturing(device);
}

// Whether a layer is fast enough where its weight may be in the L2 already. Without a table of that, which
// a user's own may lack, nothing is asked.
bool is_fast_in_l2(const crossover::Layer& layer, const Gpu& gpu, c10::Device device) {
  if (!crossover::may_stay_in_l2(layer, gpu.l2_bytes)) {
    return true;
  }
  const Evidence& table = evidence(TableFamily::LinearInL2, device);
  return table.percent == nullptr || crossover::least_percent(table.percent, layer) >=
                                         crossover::asked_in_l2(layer, table.least, gpu.l2_bytes);
}

// Whether the measured tables say that the kernel is faster. Its tiles are chosen here: how evenly they fill
// the GPU counts too.
const char* cut_by_tables(const LinearCall& call, const Gpu& gpu, FewRowsPlan& plan) {
  // Two reasons, because users can mend the second.
  const char* const slower =
      plan.vectors ? "shape that upstream multiplies faster"
                   : "shape that upstream multiplies faster, and rows of no multiple of 16 bytes";
  const c10::Device device = call.mat1.device();
  const Evidence& table = evidence(TableFamily::Linear, device);
  const Evidence& of_graphs = evidence(TableFamily::LinearInGraphs, device);
  if (table.percent == nullptr || of_graphs.percent == nullptr) {
    return "no table of the shapes that upstream multiplies faster";
  }
  const cuda::few_rows::Layer sizes = few_rows_layer(call, gpu, plan);
  const crossover::Layer layer = crossover_layer(call, plan, cuda::gemv::takes(sizes));
  const int least = crossover::least_percent(table.percent, layer);
  const int least_in_graphs = crossover::least_percent(of_graphs.percent, layer);
  bool is_ours = least >= crossover::asked(layer, table.least, /*in_graph=*/false);
  bool is_ours_in_graphs = least_in_graphs >= crossover::asked(layer, of_graphs.least, /*in_graph=*/true);
  // Also in graphs: calls over the same weight would take turns there, ours behind upstream's kernel,
  // upstream behind ours.
  if ((!is_ours && !is_ours_in_graphs) || !is_fast_in_l2(layer, gpu, device)) {
    return slower;
  }
  const Tiles& tiles = tiles_of(sizes);
  if (const char* reason = decline_tiles(tiles)) {
    return reason;
  }
  plan.dots = tiles.dots;
  plan.tiles = tiles.plan;
  if (!layer.by_dots && !crossover::has_measured_columns(layer) &&
      cuda::few_rows::is_uneven(tiles.layer, tiles.plan)) {
    const int asked = crossover::asked_if_uneven(layer);
    is_ours = is_ours && least >= asked;
    is_ours_in_graphs = is_ours_in_graphs && least_in_graphs >= asked;
  }
  const bool in_graph = is_ours != is_ours_in_graphs && is_between_others(device);
  plan.evidence = in_graph ? &of_graphs : &table;
  plan.is_blas_in_graphs = !is_ours_in_graphs;
  if (in_graph ? is_ours_in_graphs : is_ours) {
    return nullptr;
  }
  return is_ours ? "too small a gain between a graph's other kernels" : slower;
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

const char* plan_few_rows(const LinearCall& call, const MatmulFlags& flags, const Gpu& gpu,
                          FewRowsPlan& plan) {
  const char* reason = take_few_rows(call, plan);
  reason = reason != nullptr ? reason : decline_few_rows_flags(plan.dtype, flags);
  if (reason != nullptr) {
    return reason;
  }
  const Tiles& tiles = tiles_of(few_rows_layer(call, gpu, plan));
  plan.dots = tiles.dots;
  plan.tiles = tiles.plan;
  return decline_tiles(tiles);
}

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
