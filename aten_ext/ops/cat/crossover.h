// Kinds of calls on CUDA that upstream makes in one launch of its own, often as fast and sometimes faster.
// Which of them are ours on a GPU, its measured table says (core/tables.h).
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "core/tables.h"
#include "ops/cat/inputs.h"

namespace aten_ext {
namespace cat_crossover {

enum class Kind : uint8_t { Expanded, Mixed, OneInput, Other };

// The table's only axis: the kinds but the last.
inline constexpr std::array<int64_t, 1> kShape{3};

// Of so many inputs and dimensions, and of one dtype, upstream takes one launch; beyond that one for each
// input.
constexpr int64_t kUpstreamInputs = 64;
constexpr int64_t kUpstreamDims = 4;
// Results of so many bytes cost the length of a launch, and nothing else.
constexpr int64_t kLaunchBytes = int64_t{96} << 10;
constexpr int64_t kLaunchInputs = 16;
// Elements that upstream reads at full speed wherever they lie.
constexpr int64_t kLargeElement = 8;

inline Kind kind_of(const at::ITensorListRef& tensors, const CatInputs& found) {
  const bool one_launch = found.valid->dim() <= kUpstreamDims || found.count == 1;
  if (!found.one_dtype || found.contiguous || found.count > kUpstreamInputs || !one_launch) {
    return Kind::Other;
  }
  bool expanded = false;
  int64_t contiguous = 0;
  with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      if (is_skipped(t)) {
        continue;
      }
      contiguous += tensor.is_contiguous(found.format);
      for (int64_t d = 0; d < t.dim(); ++d) {
        expanded = expanded || (t.strides()[d] == 0 && t.sizes()[d] > 1);
      }
    }
  });
  if (expanded) {
    return Kind::Expanded;
  }
  if (found.count == 1) {
    return Kind::OneInput;
  }
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  const bool short_launch = found.numel() * size <= kLaunchBytes && found.count <= kLaunchInputs;
  const bool mixed = contiguous > 0 && contiguous < found.count;
  return mixed && (short_launch || size >= kLargeElement) ? Kind::Mixed : Kind::Other;
}

}  // namespace cat_crossover

inline const char* decline_by_crossover(const at::ITensorListRef& tensors, const CatInputs& found) {
  using cat_crossover::Kind;
  const Kind kind = cat_crossover::kind_of(tensors, found);
  if (kind == Kind::Other) {
    return nullptr;
  }
  const Evidence& table = evidence(TableFamily::Cat, found.valid->device());
  if (table.percent != nullptr && table.percent[static_cast<size_t>(kind)] >= table.least) {
    return nullptr;
  }
  switch (kind) {
    case Kind::Expanded:
      return "expanded input";
    case Kind::Mixed:
      return "inputs of different layouts that upstream reads as fast";
    default:
      return "one input that is not contiguous";
  }
}

}  // namespace aten_ext
