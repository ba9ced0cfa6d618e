// The loop of every fused optimizer step on CPU: over the tensors of a list, over the vectors of each. For
// cpu/<op>_kernel.cpp alone, which are compiled for an instruction set that not every machine has: all of
// this is private to the file that includes it, so that the linker cannot give it to another.
//
// An optimizer is a `Step`: what is the same for every element of a tensor, rounded once to the dtype of the
// arithmetic, and
//
//   using Op = ...;                      dtype of the arithmetic
//   static constexpr int kLists = ...;   lists that it reads: parameters, gradients, states
//   Vectorized<Op> grad_scale;           what gradients are divided by, where has_grad_scale
//   bool has_grad_scale;                 then the quotient is written back as well
//   template <bool tail> void update(Vectorized<Op> (&x)[kLists]) const;   one vector of each list, in place
//
// `tail`: the elements after a tensor's last whole vector, where upstream's scalar loop may round elsewhere.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <type_traits>

#include "core/dtype.h"
#include "ops/optimizer/cpu/tensor_list.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

using at::vec::Vectorized;

// fp32 and fp64 compute in themselves, fp16 and bf16 in fp32.
template <typename T>
constexpr bool kIs16Bit = sizeof(T) == 2;
template <typename T>
using OpMath = std::conditional_t<kIs16Bit<T>, float, T>;

// `count` elements: a vector, or with `tail` fewer. 16-bit types: one vector of T is two of float.
template <typename T, bool tail, typename Step, int lists>
C10_ALWAYS_INLINE void update_vector(const FlatTensors<lists>& tensor, int64_t at, int64_t count,
                                     const Step& step) {
  using Op = OpMath<T>;
  constexpr int kLists = Step::kLists;
  static_assert(kLists <= lists, "a list that the rows do not have");
  T* data[kLists];
  for (int list = 0; list < kLists; ++list) {
    data[list] = static_cast<T*>(tensor.data[list]) + at;
  }
  if constexpr (kIs16Bit<T>) {
    Vectorized<float> low[kLists], high[kLists];
    for (int list = 0; list < kLists; ++list) {
      const auto [l, h] = at::vec::convert_to_float<T>(Vectorized<T>::loadu(data[list], count));
      low[list] = l;
      high[list] = h;
    }
    if (step.has_grad_scale) {
      low[kGrad] = low[kGrad] / step.grad_scale;
      high[kGrad] = high[kGrad] / step.grad_scale;
      at::vec::convert_from_float<T>(low[kGrad], high[kGrad]).store(data[kGrad], count);
    }
    step.template update<tail>(low);
    step.template update<tail>(high);
    for (int list = 0; list < kLists; ++list) {
      if (list != kGrad) {
        at::vec::convert_from_float<T>(low[list], high[list]).store(data[list], count);
      }
    }
  } else {
    Vectorized<Op> x[kLists];
    for (int list = 0; list < kLists; ++list) {
      x[list] = Vectorized<T>::loadu(data[list], count);
    }
    if (step.has_grad_scale) {
      x[kGrad] = x[kGrad] / step.grad_scale;
      x[kGrad].store(data[kGrad], count);
    }
    step.template update<tail>(x);
    for (int list = 0; list < kLists; ++list) {
      if (list != kGrad) {
        x[list].store(data[list], count);
      }
    }
  }
}

// Updates the units [begin, end) of the list as if its tensors were one. `make(step)` gives the Step of a
// parameter that has taken so many.
template <typename T, typename Make, int lists>
void update_units(const FlatTensors<lists>* tensors, int64_t count, int64_t begin, int64_t end,
                  const Make& make) {
  constexpr int64_t kVector = Vectorized<T>::size();
  constexpr int64_t kElementsPerUnit = kUnitBytes / static_cast<int64_t>(sizeof(T));
  static_assert(kElementsPerUnit % kVector == 0, "a vector must not cross into another thread's unit");
  const FlatTensors<lists>* const stop = tensors + count;
  // The last tensor that starts at or before `begin`.
  const auto starts_after = [](int64_t unit, const FlatTensors<lists>& t) { return unit < t.first_unit; };
  const FlatTensors<lists>* tensor = std::upper_bound(tensors, stop, begin, starts_after) - 1;
  float count_of_steps = tensor->step;
  // A copy lives in registers or on the stack of the loop: read through a reference it would be loaded again
  // after each store, which might have changed it for all the compiler knows.
  auto step = make(count_of_steps);
  for (; tensor != stop && tensor->first_unit < end; ++tensor) {
    if (tensor->step != count_of_steps) {  // what it takes a power for is most often the same
      count_of_steps = tensor->step;
      step = make(count_of_steps);
    }
    const int64_t from = std::max<int64_t>(begin - tensor->first_unit, 0) * kElementsPerUnit;
    const int64_t to = std::min((end - tensor->first_unit) * kElementsPerUnit, tensor->numel);
    int64_t at = from;
    for (; at + kVector <= to; at += kVector) {
      update_vector<T, false>(*tensor, at, kVector, step);
    }
    if (at < to) {
      update_vector<T, true>(*tensor, at, to - at, step);
    }
  }
}

// Calls f with a value of the C++ type that `dtype` stands for, one of four.
template <typename F>
void with_dtype(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::Double:
      return f(double{});
    case Dtype::BFloat16:
      return f(at::BFloat16{});
    case Dtype::Half:
      return f(at::Half{});
    default:
      return f(float{});
  }
}

}  // namespace
}  // namespace aten_ext::cpu::CPU_CAPABILITY
