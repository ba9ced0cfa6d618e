// native_dropout and its backward at the CPU key, for the tests of paired overrides.
//
// The forward keeps a 2-D uint8 tensor where upstream keeps a mask of bool: that is how a backward tells them
// apart. It doubles its input; the backward multiplies by 3 what upstream would multiply by the scale.
#pragma once

#include <string>
#include <tuple>

#include "args.h"
#include "core/choice.h"

namespace aten_ext::cpu {

struct DropoutPlan {
  std::string describe() const {
    return "";
  }
};

Choice<DropoutPlan> choose(const args::native_dropout& arguments);
Ran<std::tuple<at::Tensor, at::Tensor>> run(const args::native_dropout& arguments, const DropoutPlan& plan);

Choice<DropoutPlan> choose(const args::native_dropout_backward& arguments);
Ran<at::Tensor> run(const args::native_dropout_backward& arguments, const DropoutPlan& plan);
bool saved_by_ours(const args::native_dropout_backward& arguments);

}  // namespace aten_ext::cpu
