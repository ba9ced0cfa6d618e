// What the CPU and the CUDA side of cat and cat.out share: one pass over the inputs that finds out all there
// is to know about them, and the rule that follows from it.
//
// The result's sizes, dtype and memory format are upstream's (aten/src/ATen/native/TensorShape.cpp, the meta
// function of cat): 1-D tensors without elements are skipped, whatever the rank of the others; the dtype is
// promoted over all inputs; the result is channels-last only where every input is. Whatever upstream raises
// an error about is declined, so that upstream raises it.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

namespace aten_ext {

// What one pass over the inputs found out.
struct CatInputs {
  const char* reason = nullptr;            // why they are not for us
  const c10::TensorImpl* valid = nullptr;  // the first that is not skipped: the sizes of the result but one
  int64_t dim = 0;                         // from 0
  int64_t size_at_dim = 0;                 // of the result
  int64_t largest_at_dim = 0;              // of one input
  int64_t count = 0;                       // inputs that are not skipped
  at::ScalarType dtype = at::kFloat;       // of the result
  at::MemoryFormat format = at::MemoryFormat::Contiguous;  // of the result
  bool one_dtype = true;
  bool contiguous = true;  // every input, in the result's memory format

  // Elements of the result.
  int64_t numel() const {
    int64_t n = size_at_dim;
    for (int64_t d = 0; d < valid->dim(); ++d) {
      n *= d == dim ? 1 : valid->sizes()[d];
    }
    return n;
  }
  // Elements between two neighbours along `dim` in the memory of a result of this format.
  int64_t stride_at_dim() const {
    const at::IntArrayRef sizes = valid->sizes();
    const bool channels_last = format != at::MemoryFormat::Contiguous;  // dimension 1 comes last
    int64_t n = channels_last && dim != 1 ? sizes[1] : 1;
    if (!channels_last || dim != 1) {
      for (int64_t d = dim + 1; d < valid->dim(); ++d) {
        n *= channels_last && d == 1 ? 1 : sizes[d];
      }
    }
    return n;
  }
  // Sizes of the result.
  c10::SmallVector<int64_t, 8> sizes() const {
    c10::SmallVector<int64_t, 8> result(valid->sizes().begin(), valid->sizes().end());
    result[dim] = size_at_dim;
    return result;
  }
};

// Calls f with the inputs as a range of tensors: an iterator of ITensorListRef itself asks at each step what
// kind of list it is in.
template <typename F>
C10_ALWAYS_INLINE auto with_tensors(const at::ITensorListRef& tensors, const F& f) {
  if (C10_LIKELY(tensors.isUnboxed())) {
    return f(tensors.toUnboxed());
  }
  return f(tensors);
}

// Why a tensor that is not an ordinary one is left to upstream.
inline const char* why_not_plain(const c10::TensorImpl& t) {
  const c10::DispatchKeySet keys = t.key_set();
  if (keys.empty()) {
    return "undefined tensor";
  }
  if (keys.has_any(c10::DispatchKeySet(
          {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor}))) {
    return "conjugate, negative or zero tensor that is not resolved";
  }
  if (keys.has(c10::DispatchKey::Sparse) || keys.has(c10::DispatchKey::SparseCsr)) {
    return "sparse tensor";
  }
  if (keys.has(c10::DispatchKey::Quantized)) {
    return "quantized tensor";
  }
  if (keys.has(c10::DispatchKey::NestedTensor)) {
    return "nested tensor";
  }
  return "tensor of another kind (a subclass, named, batched, ...)";
}

// Strided, with storage of its own device, and nothing about it that another dispatch key would see to.
C10_ALWAYS_INLINE bool is_plain(const c10::TensorImpl& t) {
  constexpr c10::DispatchKeySet kPlain =
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::ADInplaceOrView}) |
      c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask);
  const uint64_t keys = t.key_set().raw_repr();
  return (keys & ~kPlain.raw_repr()) == 0 &&
         (keys & c10::DispatchKeySet(c10::DispatchKey::Dense).raw_repr()) != 0;
}

// TensorBase::suggest_memory_format of a plain tensor, without asking for its layout.
C10_ALWAYS_INLINE at::MemoryFormat suggested_format(const c10::TensorImpl& t) {
  if (t.is_strides_like_channels_last()) {
    return at::MemoryFormat::ChannelsLast;
  }
  return t.is_strides_like_channels_last_3d() ? at::MemoryFormat::ChannelsLast3d
                                              : at::MemoryFormat::Contiguous;
}

// Dtypes that are converted into one another where inputs differ: those whose promotion is plain C++.
inline bool is_converted(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
    case at::kComplexFloat:
    case at::kComplexDouble:
    case at::kBool:
    case at::kBFloat16:
      return true;
    default:
      return false;
  }
}

// Dtypes that are copied as they are.
inline bool is_copied(at::ScalarType dtype) {
  switch (dtype) {
    case at::kComplexHalf:
    case at::kUInt16:
    case at::kUInt32:
    case at::kUInt64:
    case at::kFloat8_e5m2:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2fnuz:
    case at::kFloat8_e4m3fnuz:
      return true;
    default:
      return is_converted(dtype);
  }
}

// A 1-D tensor without elements takes no part, whatever the rank of the others.
C10_ALWAYS_INLINE bool is_skipped(const c10::TensorImpl& t) {
  const at::IntArrayRef sizes = t.sizes();
  return sizes.size() == 1 && sizes[0] == 0;
}

// The pass.
template <typename Tensors>
C10_ALWAYS_INLINE CatInputs inspect_cat(const Tensors& tensors, int64_t dim) {
  CatInputs found;
  const auto no = [&found](const char* reason) {
    found.reason = reason;
    return found;
  };
  const c10::TensorImpl* head = nullptr;
  caffe2::TypeMeta type;
  bool contiguous_by_default = true;
  bool contiguous_in_format = true;  // as long as that is not the default
  for (const at::Tensor& tensor : tensors) {
    const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
    if (C10_UNLIKELY(!is_plain(t))) {
      return no(why_not_plain(t));
    }
    if (C10_UNLIKELY(head == nullptr)) {
      head = &t;
      type = t.dtype();
      found.dtype = type.toScalarType();
      found.format = suggested_format(t);
    } else {
      if (C10_UNLIKELY(t.dtype() != type)) {
        type = t.dtype();
        if (!(is_converted(found.dtype) && is_converted(type.toScalarType()))) {
          return no("dtypes that are not converted");
        }
        found.one_dtype = false;
        found.dtype = c10::promoteTypes(found.dtype, type.toScalarType());
      }
      if (C10_UNLIKELY(found.format != at::MemoryFormat::Contiguous) && found.format != suggested_format(t)) {
        found.format = at::MemoryFormat::Contiguous;
      }
      if (C10_UNLIKELY(t.device() != head->device())) {
        return no("more than one device");
      }
    }
    const at::IntArrayRef sizes = t.sizes();
    const size_t rank = sizes.size();
    if (C10_UNLIKELY(rank <= 1)) {
      if (rank == 0) {
        return no("zero-dimensional tensor");
      }
      if (sizes[0] == 0) {
        continue;
      }
    }
    if (C10_UNLIKELY(found.valid == nullptr)) {
      found.valid = &t;
      const int64_t ranks = static_cast<int64_t>(rank);
      if ((dim < -ranks || dim >= ranks)) {
        return no("dimension that does not exist");
      }
      found.dim = dim < 0 ? dim + ranks : dim;
    } else {
      // Not ==, which calls memcmp for a handful of numbers: lists have thousands of tensors.
      const at::IntArrayRef expected = found.valid->sizes();
      bool fits = expected.size() == rank;
      for (size_t d = 0; fits && d < rank; ++d) {
        fits = sizes[d] == expected[d] || static_cast<int64_t>(d) == found.dim;
      }
      if (C10_UNLIKELY(!fits)) {
        return no("shapes that do not fit together");
      }
    }
    const int64_t size_at_dim = sizes[found.dim];
    found.size_at_dim += size_at_dim;
    found.largest_at_dim = std::max(found.largest_at_dim, size_at_dim);
    contiguous_by_default = contiguous_by_default && t.is_contiguous();
    if (C10_UNLIKELY(found.format != at::MemoryFormat::Contiguous)) {
      contiguous_in_format = contiguous_in_format && t.is_contiguous(found.format);
    }
    ++found.count;
  }
  found.contiguous =
      found.format == at::MemoryFormat::Contiguous ? contiguous_by_default : contiguous_in_format;
  return found;
}

// Whether nothing but the sizes of `out` could keep a kernel from filling it, or why not.
inline const char* decline_cat_out(const CatInputs& found, const at::ITensorListRef& tensors,
                                   const at::Tensor& out) {
  const c10::TensorImpl& o = *out.unsafeGetTensorImpl();
  if (!is_plain(o)) {
    return why_not_plain(o);
  }
  if (o.device() != found.valid->device()) {
    return "more than one device";
  }
  if (out.scalar_type() != found.dtype) {
    return "out of another dtype than the inputs' together";
  }
  if (o.sizes() != at::IntArrayRef(found.sizes())) {
    return "out that has to be resized";
  }
  if (!o.is_non_overlapping_and_dense()) {
    return "out that is not dense";
  }
  // Upstream's own question, whose answer is an error where both are dense and meet.
  return with_tensors(tensors, [&o](const auto& inputs) -> const char* {
    for (const at::Tensor& t : inputs) {
      if (t.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(o.unsafe_storage())) {
        return "out that shares memory with an input";
      }
    }
    return nullptr;
  });
}

}  // namespace aten_ext
