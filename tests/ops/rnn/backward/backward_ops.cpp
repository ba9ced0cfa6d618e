// What the tests of the backward recurrence ask of it: the plan, and the loop with a kernel of their choice.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>

#include "core/gpu.h"
#include "core/to_dtype.h"
#include "ops/rnn/backward/coefficients.h"
#include "ops/rnn/backward/recurrence_backward.h"

namespace {

using namespace aten_ext;
using namespace aten_ext::cuda;

std::vector<int64_t> numbers(const RecurrenceBackward& plan) {
  return {static_cast<int64_t>(plan.math), static_cast<int64_t>(plan.exchange), plan.blocks, plan.rows};
}

// -> reason, [math, exchange, blocks, rows], words, needs; for the GPU that is pretended.
std::tuple<std::string, std::vector<int64_t>, std::string, std::vector<int64_t>> plan(
    int64_t cell, at::ScalarType dtype, bool tf32, int64_t steps, int64_t batch, int64_t hidden,
    int64_t directions) {
  const auto choice = choose_recurrence_backward({steps, batch, hidden, static_cast<int>(directions)},
                                                 static_cast<Cell>(cell), to_dtype(dtype), tf32,
                                                 gpu_of(c10::Device(c10::kMeta)));
  if (choice.reason() != nullptr) {
    return {choice.reason(), {}, "", {}};
  }
  const Needs needs = choice.plan().needs();
  return {
      "",
      numbers(choice.plan()),
      choice.plan().describe(),
      {needs.code, needs.shared_bytes, needs.cluster, needs.resident_blocks, needs.blocks_of_multiprocessor}};
}

// coefficients [D, T, B, C, H] of float, w_hh [D, G * H, H], dy [T, B, D * H] of any strides or none, dh and
// dc [D, B, H] of float or none, kernel: math, exchange, blocks, rows -> d_hidden [D, T, B, G, H], d_input of
// the same shape (GRU), dh, dc. What is not written is NaN.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    int64_t cell, const at::Tensor& coefficients, const at::Tensor& w_hh, const std::optional<at::Tensor>& dy,
    const std::optional<at::Tensor>& dh, const std::optional<at::Tensor>& dc, at::IntArrayRef kernel) {
  const int64_t directions = coefficients.size(0);
  const int64_t steps = coefficients.size(1);
  const int64_t batch = coefficients.size(2);
  const int64_t hidden = coefficients.size(4);
  const int64_t gates = w_hh.size(1) / hidden;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor d_hidden = at::full({directions, steps, batch, gates, hidden}, nan, w_hh.options());
  const at::Tensor d_input = at::full_like(d_hidden, nan);
  const at::Tensor dh_out = at::full({directions, batch, hidden}, nan, coefficients.options());
  const at::Tensor dc_out = at::full({directions, batch, hidden}, nan, coefficients.options());

  RecurrenceBackwardParams p{};
  p.directions = static_cast<int>(directions);
  p.cell = static_cast<Cell>(cell);
  p.dtype = to_dtype(w_hh.scalar_type());
  p.steps = steps;
  p.batch = static_cast<int>(batch);
  p.hidden = static_cast<int>(hidden);
  p.plan.math = static_cast<Math>(kernel[0]);
  p.plan.exchange = static_cast<Exchange>(kernel[1]);
  p.plan.blocks = static_cast<int>(kernel[2]);
  p.plan.rows = static_cast<int>(kernel[3]);
  p.tf32 = p.plan.math == Math::MmaTf32;
  TORCH_CHECK(choose_backward_kernel({steps, batch, hidden, p.directions}, p.cell, p.dtype, p.plan),
              "no such kernel");
  for (int64_t d = 0; d < directions; ++d) {
    const auto of = [d](const std::optional<at::Tensor>& t) {
      return t.has_value() ? t->select(0, d).const_data_ptr<float>() : nullptr;
    };
    p.direction[d] = {w_hh.select(0, d).const_data_ptr(),
                      coefficients.select(0, d).const_data_ptr<float>(),
                      dy.has_value() ? dy->narrow(2, d * hidden, hidden).const_data_ptr() : nullptr,
                      of(dh),
                      of(dc),
                      d_hidden.select(0, d).mutable_data_ptr(),
                      d_input.select(0, d).mutable_data_ptr(),
                      dh_out.select(0, d).mutable_data_ptr<float>(),
                      dc_out.select(0, d).mutable_data_ptr<float>()};
  }
  p.dy_step = dy.has_value() ? dy->stride(0) : 0;
  p.dy_row = dy.has_value() ? dy->stride(1) : 0;
  const at::Tensor words = at::zeros({p.plan.words}, w_hh.options().dtype(at::kLong));
  p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  const cudaError_t error = launch_recurrence_backward(p, nullptr);
  TORCH_CHECK(error == cudaSuccess, "launch: error ", static_cast<int>(error));
  return {d_hidden, d_input, dh_out, dc_out};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_rnn_backward, m) {
  m.def("plan", plan);
  m.def(
      "backward(int cell, Tensor coefficients, Tensor w_hh, Tensor? dy, Tensor? dh, Tensor? dc, int[] "
      "kernel) "
      "-> (Tensor, Tensor, Tensor, Tensor)",
      backward);
}
