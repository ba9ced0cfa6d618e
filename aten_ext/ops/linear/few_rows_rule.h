// Whether a call goes to the kernel for few rows (few_rows.cu), and how: the reason why not, or nullptr.
#pragma once

#include "core/dtype.h"
#include "core/gpu.h"
#include "ops/linear/call.h"
#include "ops/linear/overrides.h"

namespace aten_ext {

// Whether the kernel takes a call of such sizes and layouts: everything of its plan but the tiles.
const char* take_few_rows(const LinearCall& call, cuda::FewRowsPlan& plan);

// Whether the measured tables say that the kernel is faster. Its tiles are chosen here: how evenly they fill
// the GPU counts too.
const char* cut_by_tables(const LinearCall& call, const Gpu& gpu, cuda::FewRowsPlan& plan);

// Whether flags ask for sums that the kernel does not make.
const char* decline_few_rows_flags(Dtype dtype, const MatmulFlags& flags);

}  // namespace aten_ext
