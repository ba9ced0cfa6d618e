// The parts of the linear layers' rule, for those who want one way without the crossover between them.
#pragma once

#include "core/gpu.h"
#include "ops/linear/call.h"
#include "ops/linear/overrides.h"

namespace aten_ext {

// Plans of each way, for a call that decline_operands() and decline_scalars() take; or the reason why that
// way does not take it.
const char* plan_few_rows(const LinearCall& call, const MatmulFlags& flags, const Gpu& gpu,
                          cuda::FewRowsPlan& plan);
const char* plan_lt(const LinearCall& call, const MatmulFlags& flags, cuda::LtPlan& plan);

}  // namespace aten_ext
