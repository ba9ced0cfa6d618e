#include "watch/compare.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace aten_ext {
namespace {

constexpr int64_t kChunk = 1 << 20;  // elements compared at a time

// The integer type of the same width, where bits of `dtype` order as the numbers do but for the sign.
at::ScalarType bits_type(at::ScalarType dtype) {
  if (dtype == at::kFloat8_e8m0fnu) {
    return at::kByte;  // an exponent without a sign
  }
  switch (c10::elementSize(dtype)) {
    case 1:
      return at::kChar;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

// Bits as int64 that order as the numbers do: sign and magnitude become two's complement, -0 becomes -1.
at::Tensor ordered(const at::Tensor& t) {
  const at::ScalarType type = bits_type(t.scalar_type());
  const at::Tensor bits = t.view(type).to(at::kLong);
  if (type == at::kByte) {
    return bits;
  }
  const auto width = 8 * static_cast<int>(c10::elementSize(type));
  const int64_t magnitude = std::numeric_limits<int64_t>::max() >> (64 - width);
  return at::where(bits.lt(0), bits.bitwise_and(magnitude).neg().sub(1), bits);
}

at::Tensor ulp_distance(const at::Tensor& ours, const at::Tensor& theirs) {
  const at::Tensor a = ordered(ours);
  const at::Tensor b = ordered(theirs);
  // Of one sign the difference is exact in int64; of two it may overflow there, and float64 holds it.
  return at::where(a.lt(0).eq(b.lt(0)), a.sub(b).abs().to(at::kDouble),
                   a.to(at::kDouble).sub(b.to(at::kDouble)).abs());
}

// One dimension, in the order of the elements, or in that of the memory where both are laid out alike.
std::pair<at::Tensor, at::Tensor> flatten(const Pair& pair) {
  const at::Tensor& a = pair.ours;
  const at::Tensor& b = pair.theirs;
  if (a.is_non_overlapping_and_dense() && b.is_non_overlapping_and_dense() && a.strides() == b.strides()) {
    return {a.as_strided({a.numel()}, {1}), b.as_strided({b.numel()}, {1})};
  }
  return {a.reshape({-1}), b.reshape({-1})};
}

struct Flat {
  const Pair* pair;
  at::Tensor ours;
  at::Tensor theirs;
};

// Two one-dimensional tensors of one dtype and device; `name` tells which result an element belongs to.
template <class Name>
Differences compare_chunk(const at::Tensor& ours, const at::Tensor& theirs, const Name& name) {
  Differences result;
  result.elements = static_cast<uint64_t>(ours.numel());
  const at::ScalarType dtype = ours.scalar_type();
  const bool floating = at::isFloatingType(dtype);
  TORCH_CHECK(floating || at::isIntegralType(dtype, /*includeBool=*/true), "no comparison of ", dtype);
  const auto bits = [dtype](const at::Tensor& t) { return t.view(bits_type(dtype)); };
  if (floating ? at::equal(bits(ours), bits(theirs)) : at::equal(ours, theirs)) {
    return result;
  }
  const at::Tensor x = ours.to(at::kDouble);
  const at::Tensor y = theirs.to(at::kDouble);
  const at::Tensor no_number = x.isnan().logical_or_(y.isnan());
  const at::Tensor nan = x.isnan().logical_xor_(y.isnan());
  at::Tensor distance;
  at::Tensor ulp;
  if (floating) {
    // Equal infinities are at no distance, though their difference is NaN.
    distance = x.sub(y).abs_().masked_fill_(x.eq(y).logical_or_(no_number), 0);
    ulp = ulp_distance(ours, theirs).masked_fill_(no_number, 0);
  } else {
    // Integers of 64 bits may differ where their float64 do not: by at least 1 then.
    distance = at::where(ours.ne(theirs), x.sub(y).abs_().clamp_min_(1), 0.0);
    ulp = distance;
  }
  at::Tensor relative = distance.div(y.abs()).masked_fill_(distance.eq(0), 0);
  relative.masked_fill_(relative.isnan(), std::numeric_limits<double>::infinity());  // inf / inf
  const at::Tensor different = ulp.ne(0).logical_or_(nan);
  const at::Tensor worst = at::where(nan, std::numeric_limits<double>::infinity(), ulp).argmax();

  const at::Tensor numbers = at::stack({different.sum().to(at::kDouble), nan.sum().to(at::kDouble),
                                        distance.max(), relative.max(), ulp.max(), worst.to(at::kDouble)})
                                 .cpu();
  const double* number = numbers.const_data_ptr<double>();
  result.different = static_cast<uint64_t>(number[0]);
  result.nan = static_cast<uint64_t>(number[1]);
  result.max_absolute = number[2];
  result.max_relative = number[3];
  result.max_ulp = number[4];
  if (result.different != 0) {
    result.worst = name(static_cast<int64_t>(number[5]));
  }
  return result;
}

// Many small results are compared as one: a thousand tensors would be ten thousands of operators.
void compare_values(const std::vector<Flat>& flats, Differences& result) {
  std::vector<at::Tensor> ours;
  std::vector<at::Tensor> theirs;
  std::vector<std::pair<int64_t, const Pair*>> ends;  // where the elements of a result end
  int64_t elements = 0;
  const auto flush = [&] {
    if (elements == 0) {
      return;
    }
    const auto name = [&](int64_t element) {
      return std::find_if(ends.begin(), ends.end(), [&](auto& end) { return element < end.first; })
          ->second->name;
    };
    result.merge(compare_chunk(ours.size() == 1 ? ours[0] : at::cat(ours),
                               theirs.size() == 1 ? theirs[0] : at::cat(theirs), name));
    ours.clear();
    theirs.clear();
    ends.clear();
    elements = 0;
  };
  for (const Flat& flat : flats) {
    if (!ours.empty() &&
        (ours[0].scalar_type() != flat.ours.scalar_type() || ours[0].device() != flat.ours.device())) {
      flush();
    }
    for (int64_t begin = 0; begin < flat.ours.numel();) {
      const int64_t length = std::min(flat.ours.numel() - begin, kChunk - elements);
      ours.push_back(flat.ours.narrow(0, begin, length));
      theirs.push_back(flat.theirs.narrow(0, begin, length));
      elements += length;
      begin += length;
      ends.emplace_back(elements, flat.pair);
      if (elements == kChunk) {
        flush();
      }
    }
  }
  flush();
}

template <class T>
std::string in_words(const T& ours, const T& theirs) {
  std::ostringstream text;
  text << ours << " instead of " << theirs;
  return text.str();
}

bool strides_differ(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; a.numel() != 0 && d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) {
      return true;
    }
  }
  return false;
}

// The first thing about the layout that differs, or "".
std::string layout_difference(const at::Tensor& ours, const at::Tensor& theirs) {
  if (ours.defined() != theirs.defined()) {
    return ours.defined() ? "a tensor instead of none" : "none instead of a tensor";
  }
  if (!ours.defined()) {
    return "";
  }
  if (ours.scalar_type() != theirs.scalar_type()) {
    return "dtype " + in_words(ours.scalar_type(), theirs.scalar_type());
  }
  if (ours.device() != theirs.device()) {
    return "device " + in_words(ours.device(), theirs.device());
  }
  if (ours.sizes() != theirs.sizes()) {
    return "shape " + in_words(ours.sizes(), theirs.sizes());
  }
  if (ours.layout() != theirs.layout()) {
    return "layout " + in_words(ours.layout(), theirs.layout());
  }
  return strides_differ(ours, theirs) ? "strides " + in_words(ours.strides(), theirs.strides()) : "";
}

}  // namespace

Differences compare(const std::vector<Pair>& pairs) {
  Differences result;
  std::vector<Flat> flats;
  for (const Pair& pair : pairs) {
    const std::string layout = layout_difference(pair.ours, pair.theirs);
    if (!layout.empty()) {
      ++result.layouts;
      if (result.layout.empty()) {
        result.layout = pair.name + ": " + layout;
      }
    }
    if (!pair.ours.defined() || !pair.theirs.defined() ||
        pair.ours.scalar_type() != pair.theirs.scalar_type() || pair.ours.device() != pair.theirs.device() ||
        pair.ours.sizes() != pair.theirs.sizes()) {
      continue;
    }
    if (at::isComplexType(pair.ours.scalar_type())) {
      const Pair parts{pair.name, at::view_as_real(pair.ours), at::view_as_real(pair.theirs)};
      const auto [ours, theirs] = flatten(parts);
      flats.push_back({&pair, ours, theirs});
    } else {
      const auto [ours, theirs] = flatten(pair);
      flats.push_back({&pair, ours, theirs});
    }
  }
  compare_values(flats, result);
  return result;
}

}  // namespace aten_ext
