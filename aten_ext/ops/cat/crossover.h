// Kinds of calls on CUDA that upstream makes in one launch of its own, often as fast and sometimes faster.
// Which of them are ours on a GPU, its measured table says (core/tables.h).
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>

#include "core/gpu.h"
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
// Expanded inputs of so many bytes for each of upstream's launches: of more dimensions, where its launch for
// one input has no more to do than ours for all; of more inputs, of several shapes and elements of so many
// bytes on: ours finds a block's input by a search, which takes longer than more launches.
constexpr int64_t kSearchedElement = 4;
constexpr int64_t kBytesOfLaunch = int64_t{8} << 20;
constexpr int64_t kBytesOfLaunchOfInput = int64_t{4} << 20;  // of more dimensions
// Results of so many bytes cost the length of a launch, and nothing else.
constexpr int64_t kLaunchBytes = int64_t{96} << 10;
constexpr int64_t kLaunchInputs = 16;
// Elements that upstream reads at full speed wherever they lie.
constexpr int64_t kLargeElement = 8;
// Results of so many elements, and so many of an input, in which expanded or transposed inputs are converted:
// one by one by ours, which costs more than a launch of upstream's for each input.
constexpr int64_t kLargeConversion = int64_t{8} << 20;
constexpr int64_t kLargeConvertedInput = int64_t{1} << 20;

// Short parts of the rows of several matrices: upstream goes from one matrix to the next, ours through the
// result. So many inputs, bytes of an element and of a part on average, rows of all, and bytes from one row
// to the next.
struct ShortParts {
  int64_t inputs[2];
  int64_t element[2];
  int64_t part[2];
  int64_t rows[2];
  int64_t apart[2];
};
constexpr int64_t kAnyElement = 16;
constexpr int64_t kAnyRows = int64_t{1} << 40;
constexpr int64_t kLongestPart = 16;
constexpr int64_t kFewestRowsOfParts = 150000;
constexpr ShortParts kShortParts[] = {
    {{2, 2}, {1, kAnyElement}, {0, 10}, {240000, kAnyRows}, {200, kAnyRows}},
    {{3, 16}, {1, kAnyElement}, {0, kLongestPart}, {kFewestRowsOfParts, kAnyRows}, {200, kAnyRows}},
    // Near rows. All four such calls of one element in 16 bits lost (nine inputs of 259901 rows, 38 bytes
    // apart: 29 us, ours 43), and all three of four elements (eight of 222914 rows, 28 bytes apart: 26 us,
    // ours 39).
    {{6, 9}, {2, 2}, {2, 2}, {2000000, kAnyRows}, {14, 40}},
    {{8, 9}, {2, 4}, {8, kLongestPart}, {700000, 1900000}, {20, 75}},
    // More inputs than one launch of runs takes, of up to four bytes each: 17 of [48974, 2] of 282 bytes in
    // 16 bits had 0.96 of upstream's speed in two launches.
    {{17, kUpstreamInputs}, {1, kAnyElement}, {0, 4}, {400000, kAnyRows}, {200, kAnyRows}},
};
// Strided vectors: so many, of so many bytes an element, and so many elements in all. Of two short ones
// upstream's launch is the shorter one, 1.31 us to 1.38. Of 8 bytes and more it takes as long, and less if
// their lengths differ: six of 453,000 elements in all 4.30 us, ours 4.34. Two it reads faster where they
// stay in the L2: 2.0 million elements of 8 bytes 10.5 us, ours 11.7, 0.98 million of 4 bytes 5.3, ours 6.1.
struct StridedVectors {
  int64_t inputs[2];
  int64_t element[2];
  int64_t elements[2];
};
constexpr StridedVectors kStridedVectors[] = {{{2, 2}, {1, kAnyElement}, {0, 1024}},
                                              {{2, 2}, {4, 4}, {300000, 4200000}},
                                              {{2, 12}, {8, kAnyElement}, {300000, 2100000}}};

// Contiguous inputs in whole vectors of 16 bytes, of which one is so many times as long as the mean: from so
// many on, and of so many vectors for each multiprocessor if all were as long. Ours goes input by input
// there, and no way that was timed is faster than upstream's: of 28 such calls the mean was 1.01, and nine
// were below 0.97 (two rows of 20 inputs of 9 KB and one of 50 in fp16: 1.70 us, ours 1.94).
struct OneLongInput {
  int64_t inputs;
  int64_t times;
  int64_t vectors[2];
};
constexpr OneLongInput kOneLongInput{17, 4, {600, 3000}};
constexpr int64_t kVectorBytes = 16;

// Along which it is expanded, or its memory does not run from the last dimension to the first.
inline bool is_expanded_or_transposed(const c10::TensorImpl& t) {
  int64_t before = 0;  // the stride of the last dimension so far
  for (int64_t d = t.dim() - 1; d >= 0; --d) {
    if (t.sizes()[d] > 1) {
      if (t.strides()[d] <= before) {
        return true;
      }
      before = t.strides()[d];
    }
  }
  return false;
}

inline bool is_large_conversion(const at::ITensorListRef& tensors, const CatInputs& found) {
  if (found.one_dtype || found.contiguous ||
      found.numel() < std::max(kLargeConversion, kLargeConvertedInput * found.count)) {
    return false;
  }
  bool any = false;
  with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      any = any || (!is_skipped(t) && is_expanded_or_transposed(t));
    }
  });
  return any;
}

// Of more inputs or dimensions than upstream takes in one launch.
inline bool is_large_in_launches(const at::ITensorListRef& tensors, const CatInputs& found, bool few_dims) {
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  const int64_t launches =
      few_dims ? (found.count + kUpstreamInputs - 1) / kUpstreamInputs : int64_t{found.count};
  if (found.numel() * size < (few_dims ? kBytesOfLaunch : kBytesOfLaunchOfInput) * launches) {
    return false;
  }
  if (!few_dims) {
    return true;
  }
  if (size < kSearchedElement) {
    return false;
  }
  return with_tensors(tensors, [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const at::Tensor& tensor) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      return !is_skipped(t) && t.sizes() != found.valid->sizes();
    });
  });
}

inline bool are_short_parts_apart(const at::ITensorListRef& tensors, const CatInputs& found) {
  const int64_t last = found.valid->dim() - 1;
  if (found.contiguous || !found.one_dtype || last < 1 || found.dim != last) {
    return false;
  }
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  const auto count = static_cast<int64_t>(found.count);
  const int64_t rows = found.numel() / found.size_at_dim * count;
  const int64_t bytes = found.size_at_dim * size;  // of a row of the result
  if (rows < kFewestRowsOfParts || bytes > kLongestPart * count) {
    return false;
  }
  const c10::StorageImpl* const first = found.valid->unsafe_storage().unsafeGetStorageImpl();
  bool several = false;  // they are not parts of one matrix
  int64_t apart[2] = {kAnyRows, 0};
  const bool are_parts = with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      if (is_skipped(t)) {
        continue;
      }
      if (t.sizes()[last] > 1 && t.strides()[last] != 1) {
        return false;
      }
      const int64_t to_next = t.strides()[last - 1] * size;
      apart[0] = std::min(apart[0], to_next);
      apart[1] = std::max(apart[1], to_next);
      several = several || t.unsafe_storage().unsafeGetStorageImpl() != first;
    }
    return several;
  });
  const auto in = [](const int64_t (&range)[2], int64_t low, int64_t high) {
    return range[0] <= low && high <= range[1];
  };
  return are_parts &&
         std::any_of(std::begin(kShortParts), std::end(kShortParts), [&](const ShortParts& parts) {
           return in(parts.inputs, count, count) && in(parts.element, size, size) &&
                  parts.part[0] * count <= bytes && bytes <= parts.part[1] * count &&
                  in(parts.rows, rows, rows) && in(parts.apart, apart[0], apart[1]);
         });
}

inline bool are_strided_vectors_of_upstream(const at::ITensorListRef& tensors, const CatInputs& found) {
  if (found.contiguous || !found.one_dtype || found.valid->dim() != 1) {
    return false;
  }
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  const auto has = [](const int64_t (&range)[2], int64_t value) {
    return range[0] <= value && value <= range[1];
  };
  const bool are_kept =
      std::any_of(std::begin(kStridedVectors), std::end(kStridedVectors), [&](const StridedVectors& vectors) {
        return has(vectors.inputs, found.count) && has(vectors.element, size) &&
               has(vectors.elements, found.numel());
      });
  return are_kept && with_tensors(tensors, [](const auto& list) {
           return std::all_of(list.begin(), list.end(), [](const at::Tensor& tensor) {
             const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
             return is_skipped(t) || t.strides()[0] > 1;
           });
         });
}

inline bool has_one_long_input(const at::ITensorListRef& tensors, const CatInputs& found) {
  if (!found.contiguous || !found.one_dtype || found.count < kOneLongInput.inputs) {
    return false;
  }
  const auto size = static_cast<int64_t>(c10::elementSize(found.dtype));
  const int64_t if_all_were = found.largest_at_dim * found.count;
  if (if_all_were < kOneLongInput.times * found.size_at_dim) {
    return false;
  }
  const int64_t bytes = found.numel() / found.size_at_dim * if_all_were * size;
  const int64_t vector_of_each = gpu_of(found.valid->device()).multiprocessors * kVectorBytes;
  if (bytes < kOneLongInput.vectors[0] * vector_of_each ||
      bytes > kOneLongInput.vectors[1] * vector_of_each) {
    return false;
  }
  const int64_t step = found.stride_at_dim() * size;
  return with_tensors(tensors, [&](const auto& list) {
    return std::all_of(list.begin(), list.end(), [&](const at::Tensor& tensor) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      return is_skipped(t) || t.sizes()[found.dim] * step % kVectorBytes == 0;
    });
  });
}

inline Kind kind_of(const at::ITensorListRef& tensors, const CatInputs& found) {
  const bool few_dims = found.valid->dim() <= kUpstreamDims || found.count == 1;
  const bool one_launch = few_dims && found.count <= kUpstreamInputs;
  if (!found.one_dtype || found.contiguous ||
      !(one_launch || is_large_in_launches(tensors, found, few_dims))) {
    return Kind::Other;
  }
  int64_t contiguous = 0;
  const bool expanded = with_tensors(tensors, [&](const auto& list) {
    for (const at::Tensor& tensor : list) {
      const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
      if (is_skipped(t)) {
        continue;
      }
      if (t.is_contiguous(found.format)) {  // and so not expanded
        ++contiguous;
        continue;
      }
      for (int64_t d = 0; d < t.dim(); ++d) {
        if (t.strides()[d] == 0 && t.sizes()[d] > 1) {
          return true;
        }
      }
    }
    return false;
  });
  if (expanded) {
    return Kind::Expanded;
  }
  if (!one_launch) {
    return Kind::Other;
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
  if (cat_crossover::is_large_conversion(tensors, found)) {
    return "large inputs that upstream converts as fast";
  }
  if (cat_crossover::are_short_parts_apart(tensors, found)) {
    return "short parts of rows that lie apart";
  }
  if (cat_crossover::are_strided_vectors_of_upstream(tensors, found)) {
    return "strided vectors that upstream reads as fast";
  }
  if (cat_crossover::has_one_long_input(tensors, found)) {
    return "one input much longer than the others";
  }
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
