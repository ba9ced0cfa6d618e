// Whether a step over lists of tensors would write memory that it also reads or writes elsewhere. Upstream
// takes one tensor after the other; a kernel that takes the whole list at once would then race.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace aten_ext {
namespace overlap {

// The memory of a dense tensor.
struct Span {
  uintptr_t begin;
  uintptr_t end;
  bool written;
};

// Empty for a tensor without memory, on the meta device.
inline Span span_of(const at::Tensor& t, bool written) {
  c10::StorageImpl* const storage = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  // Looked at, no more: a copy-on-write tensor gets no copy of its own, and a fake one raises nothing.
  const auto base = reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get());
  const size_t size = t.dtype().itemsize();
  const uintptr_t begin = base + static_cast<size_t>(t.storage_offset()) * size;
  return {begin, base == 0 ? begin : begin + static_cast<size_t>(t.numel()) * size, written};
}

// Whether `t` is the whole of its storage: it then overlaps only what begins where it begins.
inline bool is_whole(const at::Tensor& t) {
  return t.storage_offset() == 0 && t.unsafeGetTensorImpl()->unsafe_storage().nbytes() ==
                                        static_cast<size_t>(t.numel()) * t.dtype().itemsize();
}

// A set of addresses: 32 bits of each one's hash, by open addressing. It may take two addresses for one.
class Addresses {
 public:
  explicit Addresses(size_t most) {
    bits_ = 4;
    while (size_t{1} << bits_ < 2 * most) {
      ++bits_;
    }
    table().assign(size_t{1} << bits_, 0);
    slots_ = table().data();
  }

  // Whether it was there.
  bool insert(uintptr_t address) {
    uint32_t* const slot = find(address);
    return *slot != 0 || (*slot = mark(address), false);
  }
  bool has(uintptr_t address) const {
    return *find(address) != 0;
  }

 private:
  // A thread keeps its table: lists have thousands of tensors, and come at every step.
  static std::vector<uint32_t>& table() {
    static thread_local std::vector<uint32_t> kept;
    return kept;
  }
  // 2^64 / golden ratio: the high bits of the product depend on all of the address.
  static uint64_t hash(uintptr_t address) {
    return address * 0x9E3779B97F4A7C15ull;
  }
  static uint32_t mark(uintptr_t address) {
    return static_cast<uint32_t>(hash(address) >> 8) | 1;
  }
  // Where the address is, or a free slot for it.
  uint32_t* find(uintptr_t address) const {
    size_t slot = hash(address) >> (64 - bits_);
    while (slots_[slot] != 0 && slots_[slot] != mark(address)) {
      slot = (slot + 1) & ((size_t{1} << bits_) - 1);
    }
    return slots_ + slot;
  }

  uint32_t* slots_;
  int bits_;
};

using Lists = at::ArrayRef<at::TensorList>;

// False where no two tensors can overlap; true where they may.
inline bool may_overlap(Lists written, Lists read) {
  size_t most = 0;
  for (const at::TensorList list : written) {
    most += list.size();
  }
  Addresses seen(most);
  for (const at::TensorList list : written) {
    for (const at::Tensor& t : list) {
      const Span span = span_of(t, true);
      if (span.begin != span.end && (!is_whole(t) || seen.insert(span.begin))) {
        return true;
      }
    }
  }
  for (const at::TensorList list : read) {
    for (const at::Tensor& t : list) {
      // What is part of a storage that a written tensor is the whole of begins behind it.
      const uintptr_t base = span_of(t, false).begin - static_cast<size_t>(t.storage_offset()) * t.itemsize();
      if (base != 0 && t.numel() != 0 && seen.has(base)) {
        return true;
      }
    }
  }
  return false;
}

// The same, exactly, in any case.
inline bool do_overlap(Lists written, Lists read) {
  std::vector<Span> spans;
  const auto add = [&spans](at::TensorList list, bool is_written) {
    for (const at::Tensor& t : list) {
      if (const Span span = span_of(t, is_written); span.begin != span.end) {
        spans.push_back(span);
      }
    }
  };
  for (const at::TensorList list : written) {
    add(list, true);
  }
  for (const at::TensorList list : read) {
    add(list, false);
  }
  const auto before = [](const Span& a, const Span& b) { return a.begin < b.begin; };
  if (!std::is_sorted(spans.begin(), spans.end(), before)) {
    std::sort(spans.begin(), spans.end(), before);
  }
  uintptr_t end_of_written = 0;
  uintptr_t end_of_any = 0;
  for (const Span& span : spans) {
    if (span.begin < end_of_written || (span.written && span.begin < end_of_any)) {
      return true;
    }
    end_of_any = std::max(end_of_any, span.end);
    end_of_written = span.written ? std::max(end_of_written, span.end) : end_of_written;
  }
  return false;
}

}  // namespace overlap

// Whether a tensor of `written`, all dense, shares memory with another of them or with one of `read`.
inline bool writes_overlap(overlap::Lists written, overlap::Lists read) {
  return overlap::may_overlap(written, read) && overlap::do_overlap(written, read);
}

}  // namespace aten_ext
