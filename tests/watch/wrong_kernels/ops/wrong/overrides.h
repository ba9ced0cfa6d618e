// The overrides of table.yaml.
#pragma once

#include <string>
#include <tuple>

#include "args.h"
#include "core/choice.h"

namespace aten_ext::cpu {

struct WrongPlan {
  std::string describe() const {
    return "";
  }
};

Choice<WrongPlan> choose(const args::sigmoid& arguments);
Ran<at::Tensor> run(const args::sigmoid& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::mul_out& arguments);
Ran<at::Tensor&> run(const args::mul_out& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::aminmax& arguments);
Ran<std::tuple<at::Tensor, at::Tensor>> run(const args::aminmax& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::cat& arguments);
Ran<at::Tensor> run(const args::cat& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::uniform_& arguments);
Ran<at::Tensor&> run(const args::uniform_& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::addcmul_& arguments);
Ran<at::Tensor&> run(const args::addcmul_& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::index_Tensor& arguments);
Ran<at::Tensor> run(const args::index_Tensor& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::relu_& arguments);
Ran<at::Tensor&> run(const args::relu_& arguments, const WrongPlan& plan);
Choice<WrongPlan> choose(const args::neg& arguments);
Ran<at::Tensor> run(const args::neg& arguments, const WrongPlan& plan);

}  // namespace aten_ext::cpu
