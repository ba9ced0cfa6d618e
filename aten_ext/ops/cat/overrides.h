// cat and cat.out: their plans, and who decides and runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "args.h"
#include "core/choice.h"
#include "core/needs.h"
#include "ops/cat/gpu.h"
#include "ops/cat/inputs.h"

namespace aten_ext {

namespace cpu {

struct CatPlan {
  CatInputs inputs;

  std::string describe() const;
};

Choice<CatPlan> choose(const args::cat& arguments);
Choice<CatPlan> choose(const args::cat_out& arguments);
Ran<at::Tensor> run(const args::cat& arguments, const CatPlan& plan);
Ran<at::Tensor&> run(const args::cat_out& arguments, const CatPlan& plan);

}  // namespace cpu

namespace cuda {

struct CatPlan {
  CatInputs inputs;
  bool all_runs = false;  // inputs and result are contiguous in one format: no strides have to be looked at
  CatGpu gpu;

  std::string describe() const;
  // All kernels run everywhere: no clusters, no blocks that wait for one another, no dynamic shared memory.
  Needs needs() const {
    return {};
  }
};

Choice<CatPlan> choose(const args::cat& arguments);
Choice<CatPlan> choose(const args::cat_out& arguments);
Ran<at::Tensor> run(const args::cat& arguments, const CatPlan& plan);
Ran<at::Tensor&> run(const args::cat_out& arguments, const CatPlan& plan);

}  // namespace cuda

}  // namespace aten_ext
