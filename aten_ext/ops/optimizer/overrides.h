// The fused optimizer steps and the step counters: their plans, and who decides and runs.
#pragma once

#include <string>

#include "args.h"
#include "core/choice.h"
#include "core/dtype.h"
#include "core/needs.h"

namespace aten_ext {

namespace cpu {

// A fused step over lists of tensors: Adam, AdamW, SGD or Adagrad.
struct StepPlan {
  Dtype dtype = Dtype::Float;
  bool unscales = false;  // gradients are divided by grad_scale and written back
  bool threads = false;   // the list is shared out between threads

  std::string describe() const {
    return threads ? std::string("one parallel region over the whole list") : std::string("one thread");
  }
};

struct ForeachAddPlan {
  float value = 0;
  bool counts_versions = false;  // nobody above this kernel does

  std::string describe() const {
    return std::string("one loop over the numbers");
  }
};

Choice<StepPlan> choose(const args::_fused_adamw_& arguments);
Choice<StepPlan> choose(const args::_fused_adamw__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_adam_& arguments);
Choice<StepPlan> choose(const args::_fused_adam__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_sgd_& arguments);
Choice<StepPlan> choose(const args::_fused_sgd__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_adagrad_& arguments);
Choice<StepPlan> choose(const args::_fused_adagrad__tensor_lr& arguments);
Choice<ForeachAddPlan> choose(const args::_foreach_add__Scalar& arguments);

Ran<void> run(const args::_fused_adamw_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adamw__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adam_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adam__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_sgd_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_sgd__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adagrad_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adagrad__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_foreach_add__Scalar& arguments, const ForeachAddPlan& plan);

}  // namespace cpu

namespace cuda {

// A fused step over lists of tensors: Adam, AdamW, SGD or Adagrad.
struct StepPlan {
  Dtype dtype = Dtype::Float;
  bool unscales = false;      // gradients are divided by grad_scale and written back
  bool lr_on_device = false;  // the kernel reads the learning rate
  bool overlaps = false;      // a launch may start while the one before it runs
  int argument_bytes = 0;     // that the GPU takes in a kernel's arguments
  int multiprocessors = 0;

  std::string describe() const {
    return "lists in up to " + std::to_string(argument_bytes) + " bytes of kernel arguments" +
           (overlaps ? ", overlapped launches" : "");
  }
  Needs needs() const {
    return {};
  }
};

struct ForeachAddPlan {
  float value = 0;
  int argument_bytes = 0;  // as above

  std::string describe() const {
    return "addresses in up to " + std::to_string(argument_bytes) + " bytes of kernel arguments";
  }
  Needs needs() const {
    return {};
  }
};

Choice<StepPlan> choose(const args::_fused_adamw_& arguments);
Choice<StepPlan> choose(const args::_fused_adamw__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_adam_& arguments);
Choice<StepPlan> choose(const args::_fused_adam__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_sgd_& arguments);
Choice<StepPlan> choose(const args::_fused_sgd__tensor_lr& arguments);
Choice<StepPlan> choose(const args::_fused_adagrad_& arguments);
Choice<StepPlan> choose(const args::_fused_adagrad__tensor_lr& arguments);
Choice<ForeachAddPlan> choose(const args::_foreach_add__Scalar& arguments);

Ran<void> run(const args::_fused_adamw_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adamw__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adam_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adam__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_sgd_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_sgd__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adagrad_& arguments, const StepPlan& plan);
Ran<void> run(const args::_fused_adagrad__tensor_lr& arguments, const StepPlan& plan);
Ran<void> run(const args::_foreach_add__Scalar& arguments, const ForeachAddPlan& plan);

}  // namespace cuda

}  // namespace aten_ext
