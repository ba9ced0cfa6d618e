// A list of parameters with their gradients and states, and how its work is split between threads: evenly by
// elements over the whole list, whatever the sizes of its tensors. Both sides of a fused optimizer step on
// CPU know this: cpu/<op>.cpp, which fills the rows, and cpu/<op>_kernel.cpp, which walks them. No ATen here.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/math.h"

namespace aten_ext::cpu {

// Work is split in whole cache lines, so that no two threads write to one.
constexpr int64_t kUnitBytes = 64;

// The first two lists of every optimizer; its states follow.
enum List { kParam, kGrad, kFirstState };

// One parameter with all that belongs to it: flat, element i of each is the same index.
template <int lists>
struct FlatTensors {
  void* data[lists];   // [numel] each
  int64_t numel;       // > 0
  int64_t first_unit;  // units in the tensors before this one
  float step;          // how many steps this parameter has taken, where the formula asks
};

template <int lists>
struct TensorListOf {
  std::vector<FlatTensors<lists>> tensors;
  int64_t units = 0;

  // A row for the next tensor, which has elements.
  FlatTensors<lists>& add(int64_t numel, int64_t element_size) {
    FlatTensors<lists>& row = tensors.emplace_back();
    row.numel = numel;
    row.first_unit = units;
    units += ceil_div(numel * element_size, kUnitBytes);
    return row;
  }
};

// Whether this machine runs what is compiled for AVX2, in ATen's own view, which also honours
// ATEN_CPU_CAPABILITY.
bool has_avx2();

// Whether `elements` are worth more than one thread.
bool worth_threads(int64_t elements);

// Calls kernel(begin, end) for parts of [0, units), from several threads at once.
void parallel_units(int64_t units, int64_t elements_per_unit,
                    const std::function<void(int64_t begin, int64_t end)>& kernel);

// Calls kernel(begin, end) so that every unit of the list is visited once, with `threads` by several of them;
// with nothing in the list not at all: a kernel looks for the tensor of its first unit.
template <int lists, typename Kernel>
void for_all_units(const TensorListOf<lists>& list, int64_t element_size, bool threads,
                   const Kernel& kernel) {
  if (list.tensors.empty()) {
    return;
  }
  if (!threads) {
    kernel(int64_t{0}, list.units);
    return;
  }
  parallel_units(list.units, kUnitBytes / element_size, kernel);
}

}  // namespace aten_ext::cpu
