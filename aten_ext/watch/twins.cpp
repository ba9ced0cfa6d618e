#include "watch/twins.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace aten_ext {
namespace {

// Copies begin at multiples of this from the start of the storage: twins are aligned as the originals are.
constexpr size_t kAlignment = 512;

at::Tensor view_of(const c10::Storage& storage, at::TensorOptions options, size_t first_byte,
                   at::IntArrayRef sizes, at::IntArrayRef strides) {
  const auto offset = static_cast<int64_t>(first_byte / options.dtype().itemsize());
  at::Tensor view = at::empty({0}, options);
  view.set_(storage, offset, sizes, strides);
  return view;
}

size_t offset_in_bytes(const at::Tensor& t) {
  return static_cast<size_t>(t.storage_offset()) * t.itemsize();
}

}  // namespace

Twins::Range Twins::range_of(const at::Tensor& t) {
  const size_t begin = offset_in_bytes(t);
  if (t.numel() == 0) {
    return {begin, begin};
  }
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    last += (t.size(d) - 1) * t.stride(d);
  }
  return {begin, begin + (static_cast<size_t>(last) + 1) * t.itemsize()};
}

void Twins::writes(const at::Tensor& t) {
  if (!t.defined()) {
    return;
  }
  TORCH_CHECK(t.layout() == at::kStrided && t.has_storage(), "an argument that is written to has no storage");
  const Range range = range_of(t);
  const auto [found, fresh] = copies_.try_emplace(t.storage().unsafeGetStorageImpl(), Copy{t, range, range});
  if (!fresh) {
    Range& written = found->second.written;
    written = {std::min(written.begin, range.begin), std::max(written.end, range.end)};
  }
}

void Twins::reads(const at::Tensor& t) {
  if (t.defined() && t.layout() == at::kStrided && t.has_storage()) {
    reads_.push_back(t);
  }
}

void Twins::make() {
  for (auto& [storage, copy] : copies_) {
    copy.copied = copy.written;
  }
  for (const at::Tensor& t : reads_) {
    const auto found = copies_.find(t.storage().unsafeGetStorageImpl());
    const Range range = range_of(t);
    if (found != copies_.end() && range.begin < found->second.written.end &&
        found->second.written.begin < range.end) {
      Range& copied = found->second.copied;
      copied = {std::min(copied.begin, range.begin), std::max(copied.end, range.end)};
    }
  }
  for (auto& [storage, copy] : copies_) {
    copy.copied.begin -= copy.copied.begin % kAlignment;
    const auto length = static_cast<int64_t>(copy.copied.end - copy.copied.begin);
    const auto options = at::TensorOptions().dtype(at::kByte).device(copy.any.device());
    copy.bytes = at::empty({length}, options);
    if (length != 0) {
      copy.bytes.copy_(view_of(copy.any.storage(), options, copy.copied.begin, {length}, {1}));
    }
  }
}

at::Tensor Twins::twin(const at::Tensor& t) const {
  if (!t.defined() || t.layout() != at::kStrided || !t.has_storage()) {
    return t;
  }
  const auto found = copies_.find(t.storage().unsafeGetStorageImpl());
  if (found == copies_.end()) {
    return t;
  }
  const Copy& copy = found->second;
  const Range range = range_of(t);
  if (range.begin < copy.copied.begin || range.end > copy.copied.end) {
    return t;
  }
  at::Tensor twin = view_of(copy.bytes.storage(), at::TensorOptions().dtype(t.dtype()).device(t.device()),
                            range.begin - copy.copied.begin, t.sizes(), t.strides());
  if (t.is_conj()) {
    twin._set_conj(true);
  }
  if (t.is_neg()) {
    twin._set_neg(true);
  }
  return twin;
}

}  // namespace aten_ext
