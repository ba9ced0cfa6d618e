// Copies of the memory that a call writes to, so that upstream can make the same call beside it.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace aten_ext {

// For each tensor of a call the twin that lies in the copies. What shares memory shares it there, too;
// strides, storage offset and alignment are kept.
class Twins {
 public:
  // Say what all arguments are, then make() the copies.
  void writes(const at::Tensor& t);
  void reads(const at::Tensor& t);
  void make();
  // `t` itself where the call does not write to its memory.
  at::Tensor twin(const at::Tensor& t) const;

 private:
  struct Range {  // bytes of a storage
    size_t begin;
    size_t end;
  };
  struct Copy {
    at::Tensor any;  // one of the tensors that lie there
    Range written;
    Range copied;  // what is written to, and all of whatever else overlaps that
    at::Tensor bytes{};
  };
  static Range range_of(const at::Tensor& t);

  std::map<const void*, Copy> copies_;  // by StorageImpl
  std::vector<at::Tensor> reads_;
};

// Call f(tensor, position in its list, or -1) for each tensor of an argument or a result.
template <class F>
void each_tensor(const at::Tensor& t, const F& f) {
  f(t, int64_t{-1});
}
template <class F>
void each_tensor(const std::optional<at::Tensor>& t, const F& f) {
  if (t.has_value()) {
    f(*t, int64_t{-1});
  }
}
template <class F>
void each_tensor(at::TensorList list, const F& f) {
  for (size_t i = 0; i < list.size(); ++i) {
    f(list[i], static_cast<int64_t>(i));
  }
}
template <class F>
void each_tensor(const std::vector<at::Tensor>& list, const F& f) {
  each_tensor(at::TensorList(list), f);
}
template <class F>
void each_tensor(const at::ITensorListRef& list, const F& f) {
  int64_t i = 0;
  for (const at::Tensor& t : list) {
    f(t, i++);
  }
}
template <class F>
void each_tensor(const c10::List<std::optional<at::Tensor>>& list, const F& f) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (const std::optional<at::Tensor> t = list.get(i); t.has_value()) {
      f(*t, static_cast<int64_t>(i));
    }
  }
}
template <class T, class F>
void each_tensor(const T& /*not a tensor*/, const F& /*f*/) {}

// What upstream gets in place of an argument of type A.
template <class A>
struct Twin {
  A value;
  Twin(const Twins& /*twins*/, A a) : value(std::forward<A>(a)) {}
  A get() {
    return static_cast<A>(value);
  }
};
template <>
struct Twin<const at::Tensor&> {
  at::Tensor value;
  Twin(const Twins& twins, const at::Tensor& t) : value(twins.twin(t)) {}
  const at::Tensor& get() {
    return value;
  }
};
template <>
struct Twin<at::Tensor&> {
  at::Tensor value;
  Twin(const Twins& twins, const at::Tensor& t) : value(twins.twin(t)) {}
  at::Tensor& get() {
    return value;
  }
};
template <>
struct Twin<const std::optional<at::Tensor>&> {
  std::optional<at::Tensor> value;
  Twin(const Twins& twins, const std::optional<at::Tensor>& t) {
    each_tensor(t, [&](const at::Tensor& inner, int64_t) { value = twins.twin(inner); });
  }
  const std::optional<at::Tensor>& get() {
    return value;
  }
};
template <>
struct Twin<at::TensorList> {
  std::vector<at::Tensor> value;
  Twin(const Twins& twins, at::TensorList list) {
    value.reserve(list.size());
    each_tensor(list, [&](const at::Tensor& t, int64_t) { value.push_back(twins.twin(t)); });
  }
  at::TensorList get() {
    return value;
  }
};
template <>
struct Twin<const at::ITensorListRef&> {
  std::vector<at::Tensor> value;
  std::optional<at::ITensorListRef> reference{};
  Twin(const Twins& twins, const at::ITensorListRef& list) {
    value.reserve(list.size());
    each_tensor(list, [&](const at::Tensor& t, int64_t) { value.push_back(twins.twin(t)); });
  }
  const at::ITensorListRef& get() {
    return reference.emplace(at::TensorList(value));
  }
};
template <>
struct Twin<const c10::List<std::optional<at::Tensor>>&> {
  c10::List<std::optional<at::Tensor>> value;
  Twin(const Twins& twins, const c10::List<std::optional<at::Tensor>>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      const std::optional<at::Tensor> t = list.get(i);
      value.push_back(t.has_value() ? std::optional<at::Tensor>(twins.twin(*t)) : std::nullopt);
    }
  }
  const c10::List<std::optional<at::Tensor>>& get() {
    return value;
  }
};

}  // namespace aten_ext
