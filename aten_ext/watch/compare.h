// How far two sets of results are apart: the arithmetic of shadow mode, in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "watch/watch.h"

namespace aten_ext {

// One result of a call, of the fused kernel and of upstream.
struct Pair {
  std::string name;  // "out", "exp_avgs[2]"
  at::Tensor ours;
  at::Tensor theirs;
};

// Compares shapes, dtypes, strides and devices, and the values where shape and dtype are the same.
//
//   absolute   |ours - theirs| in float64
//   relative   the same over |theirs|; infinity where only theirs is 0
//   ulp        floating-point numbers of this dtype in between: the difference of their bits read as
//              integers that order as the numbers do (sign and magnitude; -0 comes right below +0). For
//              integers and booleans the difference itself
//
// So max_ulp = 0 and no NaN on one side alone means equal bits, NaN taken for NaN. Complex numbers count as
// two. NaN and equal infinities are at no distance; a finite number is infinitely far from an infinite one.
// Takes about 100 bytes an element for 2^20 elements at a time, on the results' device, and synchronises
// with it.
Differences compare(const std::vector<Pair>& pairs);

}  // namespace aten_ext
