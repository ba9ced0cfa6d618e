// Whether a step over lists of tensors would write memory that it also reads or writes elsewhere. Upstream
// takes one tensor after the other; a kernel that takes the whole list at once would then race.
//
// All tensors are dense and of one element size. Most have a storage each, for which a set of the storages'
// addresses is enough. Where two have one (parameters in a flat buffer), all are compared as spans.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace aten_ext::overlap {

using Lists = at::ArrayRef<at::TensorList>;

// The memory of a tensor.
struct Span {
  uintptr_t begin;
  uintptr_t end;
  bool written;
};

// Of the storage; 0 on the meta device. Looked at, no more: a copy-on-write tensor gets no copy of its own,
// and a fake one raises nothing.
C10_ALWAYS_INLINE uintptr_t base_of(const at::Tensor& t) {
  c10::StorageImpl* const storage = t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  return reinterpret_cast<uintptr_t>(storage->_mutable_data_ptr_no_checks().get());
}

C10_ALWAYS_INLINE bool has_memory(const at::Tensor& t) {
  return t.numel() != 0 && base_of(t) != 0;
}

// A set of addresses: 32 bits of each one's hash, by open addressing. It may take two addresses for one.
class Addresses {
 public:
  // A thread keeps its table: lists have thousands of tensors, and come at every step.
  Addresses(std::vector<uint32_t>& table, size_t most) {
    while (size_t{1} << bits_ < 2 * most) {
      ++bits_;
    }
    table.assign(size_t{1} << bits_, 0);
    slots_ = table.data();
  }

  // False where it was there.
  C10_ALWAYS_INLINE bool insert(uintptr_t address) {
    uint32_t& slot = find(address);
    return slot == 0 && (slot = mark(address)) != 0;
  }
  C10_ALWAYS_INLINE bool has(uintptr_t address) const {
    return find(address) != 0;
  }

 private:
  // 2^64 / golden ratio: the high bits of the product depend on all of the address.
  static uint64_t hash(uintptr_t address) {
    return address * 0x9E3779B97F4A7C15ull;
  }
  static uint32_t mark(uintptr_t address) {
    return static_cast<uint32_t>(hash(address) >> 8) | 1;
  }
  // Where the address is, or a free slot for it.
  C10_ALWAYS_INLINE uint32_t& find(uintptr_t address) const {
    size_t slot = hash(address) >> (64 - bits_);
    while (slots_[slot] != 0 && slots_[slot] != mark(address)) {
      slot = (slot + 1) & ((size_t{1} << bits_) - 1);
    }
    return slots_[slot];
  }

  uint32_t* slots_;
  int bits_ = 4;
};

// False where no two can overlap, which one look at each tensor shows; true where they may.
inline bool may_overlap(Lists written, Lists read) {
  static thread_local std::vector<uint32_t> table;
  size_t most = 0;
  for (const at::TensorList list : written) {
    most += list.size();
  }
  Addresses seen(table, most);
  for (const at::TensorList list : written) {
    for (const at::Tensor& t : list) {
      if (has_memory(t) && !seen.insert(base_of(t))) {
        return true;
      }
    }
  }
  for (const at::TensorList list : read) {
    for (const at::Tensor& t : list) {
      if (has_memory(t) && seen.has(base_of(t))) {
        return true;
      }
    }
  }
  return false;
}

// Whether `spans`, in order of their beginnings, overlap where one of two is written.
inline bool do_overlap(const std::vector<Span>& spans) {
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

inline bool in_order(const Span& a, const Span& b) {
  return a.begin < b.begin;
}

// The same, exactly, in any case.
inline bool do_overlap(Lists written, Lists read, size_t element_size) {
  static thread_local std::vector<Span> spans;
  spans.clear();
  // Lists that are each in order, and each in a place of its own, need no sorting: one span stands for each.
  std::vector<Span> whole_lists;
  bool in_place = true;
  for (const bool is_written : {true, false}) {
    for (const at::TensorList list : is_written ? written : read) {
      Span hull{UINTPTR_MAX, 0, is_written};
      for (const at::Tensor& t : list) {
        if (has_memory(t)) {
          const uintptr_t begin = base_of(t) + static_cast<size_t>(t.storage_offset()) * element_size;
          const uintptr_t end = begin + static_cast<size_t>(t.numel()) * element_size;
          in_place = in_place && (begin >= hull.end || !is_written);
          hull = {std::min(hull.begin, begin), std::max(hull.end, end), is_written};
          spans.push_back({begin, end, is_written});
        }
      }
      if (hull.end != 0) {
        whole_lists.push_back(hull);
      }
    }
  }
  std::sort(whole_lists.begin(), whole_lists.end(), in_order);
  if (in_place && !do_overlap(whole_lists)) {
    return false;
  }
  std::sort(spans.begin(), spans.end(), in_order);
  return do_overlap(spans);
}

// Whether a tensor of `written` shares memory with another of them or with one of `read`.
inline bool writes_overlap(Lists written, Lists read, size_t element_size) {
  return may_overlap(written, read) && do_overlap(written, read, element_size);
}

}  // namespace aten_ext::overlap
