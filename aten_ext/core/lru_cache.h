// A map of bounded size that forgets what was used longest ago. Standard library only. Not for several
// threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "core/mix.h"

namespace aten_ext {

// Hash and equality of the bytes: Key has no padding, so equal keys have equal bytes.
template <typename Key>
struct HashBytes {
  static_assert(std::has_unique_object_representations_v<Key> && sizeof(Key) % sizeof(uint64_t) == 0);

  size_t operator()(const Key& key) const noexcept {
    uint64_t words[sizeof(Key) / sizeof(uint64_t)];
    std::memcpy(words, &key, sizeof(Key));
    uint64_t hash = 0;
    for (const uint64_t word : words) {
      hash = mix(hash, word);
    }
    return static_cast<size_t>(hash);
  }
};
template <typename Key>
struct SameBytes {
  bool operator()(const Key& a, const Key& b) const noexcept {
    return std::memcmp(&a, &b, sizeof(Key)) == 0;
  }
};

template <typename Key, typename Value>
class LruCache {
 public:
  // capacity: at least 1.
  explicit LruCache(size_t capacity) : capacity_(capacity) {}
  LruCache(const LruCache&) = delete;
  LruCache& operator=(const LruCache&) = delete;

  // The value of `key`, made by make(Value&) the first time and after it was forgotten. The reference is
  // good until the next call. If make throws, nothing is kept.
  template <typename Make>
  Value& get(const Key& key, Make&& make) {
    // A layer is often called, or asked about, twice in a row.
    if (!entries_.empty() && SameBytes<Key>{}(entries_.front().first, key)) {
      return entries_.front().second;
    }
    const auto found = places_.find(key);
    if (found != places_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return entries_.front().second;
    }
    // In place: a value may be made of descriptors that are not to be moved.
    std::list<std::pair<const Key, Value>> made;
    made.emplace_front(std::piecewise_construct, std::forward_as_tuple(key), std::forward_as_tuple());
    make(made.front().second);
    if (entries_.size() == capacity_) {
      places_.erase(entries_.back().first);
      entries_.pop_back();
    }
    places_.emplace(key, made.begin());
    entries_.splice(entries_.begin(), made);
    return entries_.front().second;
  }

  size_t size() const {
    return entries_.size();
  }

 private:
  using Entries = std::list<std::pair<const Key, Value>>;

  size_t capacity_;
  Entries entries_;  // the one used last comes first
  std::unordered_map<Key, typename Entries::iterator, HashBytes<Key>, SameBytes<Key>> places_;
};

}  // namespace aten_ext
