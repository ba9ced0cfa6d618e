// addmm, mm, _addmm_activation and their out= overloads on CUDA: their plan, and who decides and runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <variant>

#include "args.h"
#include "core/choice.h"
#include "core/dtype.h"
#include "core/needs.h"
#include "core/tables.h"
#include "ops/linear/epilogue.h"
#include "ops/linear/few_rows_plan.h"
#include "ops/linear/gemv_plan.h"
#include "ops/linear/lt.h"

namespace aten_ext::cuda {

// The kernels for few rows: dot products (gemv.cuh) if that plan has rows, otherwise tiles (few_rows.cu).
struct FewRowsPlan {
  gemv::Plan dots;
  few_rows::Plan tiles;
  bool mat2_is_transposed;  // the view that nn.Linear makes of its weight
  bool vectors;             // how rows of mat1 and mat2 are aligned: LinearParams' (few_rows.h)
  Dtype dtype;
  Epilogue epilogue;
  float alpha, beta;                   // beta = 0: the bias is not read
  const Evidence* evidence = nullptr;  // what decided; nullptr: a test
  bool is_blas_in_graphs = false;      // captured, such a call is cuBLAS's or cuBLASLt's
};

// cuBLASLt, with the algorithm that belongs to the key.
struct LtPlan {
  LtKey key;
  float alpha;
};

struct LinearPlan {
  std::variant<FewRowsPlan, LtPlan> way;

  std::string describe() const;
  Needs needs() const;
};

Choice<LinearPlan> choose(const args::addmm& arguments);
Choice<LinearPlan> choose(const args::addmm_out& arguments);
Choice<LinearPlan> choose(const args::_addmm_activation& arguments);
Choice<LinearPlan> choose(const args::_addmm_activation_out& arguments);
Choice<LinearPlan> choose(const args::mm& arguments);
Choice<LinearPlan> choose(const args::mm_out& arguments);

Ran<at::Tensor> run(const args::addmm& arguments, const LinearPlan& plan);
Ran<at::Tensor&> run(const args::addmm_out& arguments, const LinearPlan& plan);
Ran<at::Tensor> run(const args::_addmm_activation& arguments, const LinearPlan& plan);
Ran<at::Tensor&> run(const args::_addmm_activation_out& arguments, const LinearPlan& plan);
Ran<at::Tensor> run(const args::mm& arguments, const LinearPlan& plan);
Ran<at::Tensor&> run(const args::mm_out& arguments, const LinearPlan& plan);

}  // namespace aten_ext::cuda
