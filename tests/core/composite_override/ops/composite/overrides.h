// gru_cell at the CPU key, for the tests of composite operators.
#pragma once

#include <string>

#include "args.h"
#include "core/choice.h"

namespace aten_ext::cpu {

struct CellPlan {
  std::string describe() const {
    return "";
  }
};

Choice<CellPlan> choose(const args::gru_cell& arguments);
Ran<at::Tensor> run(const args::gru_cell& arguments, const CellPlan& plan);

}  // namespace aten_ext::cpu
