// Twin of aten_ext/ops/rnn/projection.h: in fp32, which a tolerance for TF32 covers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>

namespace aten_ext::cuda {

inline void project_input(const at::Tensor& rows, const at::Tensor (&w)[2], int directions, bool /*tf32*/,
                          at::Tensor (&projections)[2]) {
  for (int direction = 0; direction < directions; ++direction) {
    projections[direction] = at::mm(rows.to(at::kFloat), w[direction].t().to(at::kFloat));
  }
}

}  // namespace aten_ext::cuda
