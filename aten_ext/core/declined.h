// What a thread's calls were declined for, so that the next one like it goes upstream at once.
//
// A rule takes 0.2 to 0.5 us where its code and what it reads are in the caches, and several times as long in
// a program, whose other work has pushed them out: of a call that upstream is as fast at, that is all that
// there is to gain or to lose.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/mix.h"

namespace aten_ext {

// 64 bits of all that a rule goes by. 0, where it begins, stands for a call that is not to be remembered.
class Fingerprint {
 public:
  void add(uint64_t word) {
    state_ = mix(state_, word);
  }

  // What a tensor is, how it lies, and where in a line of the cache it begins. False: it is no tensor of a
  // GPU that has memory of its own.
  bool add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided || !tensor.has_storage()) {
      return false;
    }
    constexpr uintptr_t kLine = 128;
    const c10::TensorImpl& t = *tensor.unsafeGetTensorImpl();
    const uintptr_t address = reinterpret_cast<uintptr_t>(t.storage().data()) +
                              static_cast<uintptr_t>(t.storage_offset()) * t.itemsize();
    add(t.key_set().raw_repr());
    add(static_cast<uint64_t>(t.dtype().toScalarType()) | static_cast<uint64_t>(t.dim()) << 8 |
        static_cast<uint64_t>(static_cast<uint8_t>(t.device().index())) << 32 | (address % kLine) << 40);
    for (int64_t d = 0; d < t.dim(); ++d) {
      add(static_cast<uint64_t>(t.sizes()[d]));
      add(static_cast<uint64_t>(t.strides()[d]));
    }
    return true;
  }

  uint64_t value() const {
    return state_;
  }

 private:
  uint64_t state_ = 0;
};

// Reasons by fingerprint, as many as there are places for. Two calls of one fingerprint are taken for alike,
// which then sends one of them upstream without asking: never a different answer. So plans are not kept here.
class Declined {
 public:
  // nullptr: no such call is known.
  const char* reason(uint64_t fingerprint) const {
    const Place& place = places_[fingerprint % kPlaces];
    return place.fingerprint == fingerprint ? place.reason : nullptr;
  }

  void add(uint64_t fingerprint, const char* reason) {
    if (fingerprint == 0) {
      return;
    }
    places_[fingerprint % kPlaces] = {fingerprint, reason};
  }

 private:
  struct Place {
    uint64_t fingerprint = 0;
    const char* reason = nullptr;
  };
  static constexpr size_t kPlaces = 128;
  std::array<Place, kPlaces> places_{};
};

}  // namespace aten_ext
