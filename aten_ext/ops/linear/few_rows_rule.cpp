// The rule of the kernel for few rows: sizes and layouts that it takes, and what the measured tables say of
// them (crossover.h).
//
// The rule is compiled in a CPU build too: aten_ext.explain asks it about a GPU elsewhere.
#include "ops/linear/few_rows_rule.h"

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "core/capture.h"
#include "core/tables.h"
#include "core/to_dtype.h"
#include "ops/linear/crossover.h"
#include "ops/linear/rule.h"

#ifdef ATEN_EXT_WITH_CUDA
#include <c10/cuda/CUDAStream.h>

#include "ops/linear/few_rows.h"
#endif

namespace aten_ext {
namespace {

using cuda::FewRowsPlan;

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

// Whether a layer is fast enough where its weight may be in the L2 already, by the table of that.
bool is_fast_in_l2(const crossover::Layer& layer, const Evidence& table, int64_t l2_bytes) {
  return !crossover::may_stay_in_l2(layer, l2_bytes) ||
         crossover::least_percent(table.percent, layer) >=
             crossover::asked_in_l2(layer, table.least, l2_bytes);
}

}  // namespace

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

const char* cut_by_tables(const LinearCall& call, const Gpu& gpu, FewRowsPlan& plan) {
  // Two reasons, because users can mend the second.
  const char* const slower =
      plan.vectors ? "shape that upstream multiplies faster"
                   : "shape that upstream multiplies faster, and rows of no multiple of 16 bytes";
  const c10::Device device = call.mat1.device();
  const Evidence& table = evidence(TableFamily::Linear, device);
  const Evidence& of_graphs = evidence(TableFamily::LinearInGraphs, device);
  const Evidence& in_l2 = evidence(TableFamily::LinearInL2, device);
  if (table.percent == nullptr || of_graphs.percent == nullptr || in_l2.percent == nullptr) {
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
  if ((!is_ours && !is_ours_in_graphs) || !is_fast_in_l2(layer, in_l2, gpu.l2_bytes)) {
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

}  // namespace aten_ext
