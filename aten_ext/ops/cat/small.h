// Calls of so few bytes on CUDA that the length of one launch is all they cost, and upstream's is the shorter
// one. Measured on an H200: docs/kernels/cat.md.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include "ops/cat/inputs.h"

namespace aten_ext {

// Of the result.
constexpr int64_t kSmallCatBytes = int64_t{96} << 10;
// Beyond these, upstream takes more launches than one, or longer ones.
constexpr int64_t kSmallCatInputs = 16;
constexpr int64_t kSmallCatDims = 4;
// Pieces that are no multiple of it are read one byte or half at a time.
constexpr int64_t kCatWordBytes = 4;

inline const char* decline_small_cat(const at::ITensorListRef& tensors, const CatInputs& found) {
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  if (!found.one_dtype || found.count < 2 || found.count > kSmallCatInputs ||
      found.valid->dim() > kSmallCatDims || found.numel() * size > kSmallCatBytes) {
    return nullptr;
  }
  const int64_t step = found.stride_at_dim();
  bool words = true;
  bool expanded = false;
  int64_t contiguous = 0;
  with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      if (is_skipped(t)) {
        continue;
      }
      contiguous += tensor.is_contiguous(found.format);
      words = words && t.sizes()[found.dim] * step * size % kCatWordBytes == 0;
      for (int64_t d = 0; d < t.dim(); ++d) {
        expanded = expanded || (t.strides()[d] == 0 && t.sizes()[d] > 1);
      }
    }
  });
  if (contiguous < found.count) {
    return expanded || contiguous > 0 ? "few elements in memory of different layouts" : nullptr;
  }
  const bool one_row = found.size_at_dim * step == found.numel();
  return one_row && !words ? "few elements in pieces that are no whole words" : nullptr;
}

}  // namespace aten_ext
