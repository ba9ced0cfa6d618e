// What forward and backward share: W_hh in panels, or a GEMM before each step and then its gates.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>

#include "core/denormals.h"
#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {

// W_hh as `pack(from, hidden, to, blocks)` lays it out.
template <class Pack>
at::Tensor pack_panels(const RnnThreads& threads, const at::Tensor& w_hh, int64_t blocks, int64_t block_size,
                       const Pack& pack) {
  const at::Tensor wide = w_hh.to(at::kFloat);
  at::Tensor panels = at::empty({blocks * block_size}, wide.options());
  const float* const from = wide.const_data_ptr<float>();
  float* const to = panels.mutable_data_ptr<float>();
  const auto some = [&](int64_t begin, int64_t end) { pack(from, w_hh.size(1), to, RnnRange{begin, end}); };
  if (threads.parts == 0) {
    some(0, blocks);
  } else {
    at::parallel_for(0, blocks, 1, some);
  }
  return panels;
}

// The product of a step with W_hh, by a GEMM. Operands of 16 bits are rounded to that, as upstream's are.
class StepProduct {
 public:
  // `w`: [k, n], any strides; `rows`: of a step, at most.
  StepProduct(const at::Tensor& w, int64_t rows);
  // Of the rows from `row` on, from their float32 [count, k]. None: nothing.
  void make(const at::Tensor& from, int64_t row = 0);
  const float* data() const {
    return product_.const_data_ptr<float>();
  }

 private:
  at::Tensor w_, product_;
  at::Tensor narrow_from_, narrow_product_;  // of 16 bits, or undefined
};

// Below this many elements of gates a pass over them stays on one thread.
inline constexpr int64_t kGatesOfThread = 16384;

// Calls gates(direction, rows) for all rows of `batch` of all directions, `gates_of_row` elements each.
template <class Gates>
void for_rows(int directions, int64_t batch, int64_t gates_of_row, const Gates& gates) {
  const int64_t grain = std::max<int64_t>(1, kGatesOfThread / gates_of_row);
  parallel_for_as_caller(0, directions * batch, grain, [&](int64_t begin, int64_t end) {
    for (int64_t d = begin / batch; d * batch < end; ++d) {
      const int64_t row = d * batch;
      gates(d, RnnRange{std::max(begin - row, int64_t{0}), std::min(end - row, batch)});
    }
  });
}

}  // namespace aten_ext::cpu
