// What the tests of the GRU ask of its parts, beside the operators: the policy, and the recurrence of one
// layer with a kernel of their choice.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "cuda/cudnn_rnn.h"
#include "cuda/gru_plan.h"
#include "runtime.h"

namespace {

using namespace aten_ext;
using cuda::RecurrenceParams;

// -> reason, [route, math, exchange, blocks, rows], tf32
std::tuple<std::string, std::vector<int64_t>, bool> plan(bool sixteen_bits, bool tf32_allowed, int64_t steps,
                                                         int64_t batch, int64_t input, int64_t hidden,
                                                         int64_t directions, at::IntArrayRef device) {
  const GruDevice d{static_cast<int>(device[0]),
                    static_cast<int>(device[1]),
                    {static_cast<int>(device[2]), static_cast<int>(device[3]), static_cast<int>(device[4])}};
  const GruPlan p = plan_gru({sixteen_bits, /*bfloat16=*/false, tf32_allowed, steps, batch, input, hidden,
                              static_cast<int>(directions)},
                             d);
  return {p.reason == nullptr ? "" : p.reason,
          {static_cast<int64_t>(p.route), static_cast<int64_t>(p.math), static_cast<int64_t>(p.exchange),
           p.blocks, p.rows},
          p.tf32};
}

RecurrenceParams params(at::ScalarType dtype, int64_t steps, int64_t batch, int64_t hidden,
                        int64_t directions, at::IntArrayRef kernel /* math, exchange, blocks, rows */) {
  RecurrenceParams p{};
  p.directions = static_cast<int>(directions);
  p.dtype = dtype == at::kHalf       ? cuda::RecurrenceDtype::Half
            : dtype == at::kBFloat16 ? cuda::RecurrenceDtype::BFloat16
                                     : cuda::RecurrenceDtype::Float;
  p.steps = steps;
  p.batch = static_cast<int>(batch);
  p.hidden = static_cast<int>(hidden);
  p.math = static_cast<cuda::RecurrenceMath>(kernel[0]);
  p.exchange = static_cast<cuda::RecurrenceExchange>(kernel[1]);
  p.blocks = static_cast<int>(kernel[2]);
  p.rows = static_cast<int>(kernel[3]);
  return p;
}

bool fits(bool sixteen_bits, int64_t steps, int64_t batch, int64_t hidden, int64_t directions,
          at::IntArrayRef kernel) {
  bool answer = false;
  const cudaError_t error = cuda::query_recurrence_launch(
      params(sixteen_bits ? at::kHalf : at::kFloat, steps, batch, hidden, directions, kernel), answer);
  TORCH_CHECK(error == cudaSuccess, "error ", static_cast<int>(error));
  return answer;
}

// gates [D, T, B, 3H] of float, w_hh [D, 3H, H], biases [D, 3H] or none, h0 [D, B, H] -> y [T, B, D * H], hy
// [D, B, H]
std::tuple<at::Tensor, at::Tensor> recurrence(const at::Tensor& gates, const at::Tensor& w_hh,
                                              const std::optional<at::Tensor>& b_ih,
                                              const std::optional<at::Tensor>& b_hh, const at::Tensor& h0,
                                              at::IntArrayRef kernel) {
  const int64_t directions = gates.size(0);
  const int64_t steps = gates.size(1);
  const int64_t batch = gates.size(2);
  const int64_t hidden = h0.size(2);
  const at::Tensor hy = at::empty_like(h0);
  const at::Tensor y = at::empty({steps, batch, directions * hidden}, h0.options());
  RecurrenceParams p = params(h0.scalar_type(), steps, batch, hidden, directions, kernel);
  for (int64_t d = 0; d < directions; ++d) {
    p.direction[d] = {w_hh.select(0, d).const_data_ptr(),
                      b_ih.has_value() ? b_ih->select(0, d).const_data_ptr() : nullptr,
                      b_hh.has_value() ? b_hh->select(0, d).const_data_ptr() : nullptr,
                      gates.select(0, d).const_data_ptr<float>(),
                      h0.select(0, d).const_data_ptr(),
                      hy.select(0, d).mutable_data_ptr(),
                      static_cast<char*>(y.mutable_data_ptr()) + d * hidden * y.element_size()};
  }
  p.gate_step = gates.stride(1);
  p.gate_row = gates.stride(2);
  p.y_step = y.stride(0);
  p.y_row = y.stride(1);
  const at::Tensor words = at::zeros({cuda::exchange_words(p)}, h0.options().dtype(at::kLong));
  p.words = reinterpret_cast<uint64_t*>(words.mutable_data_ptr<int64_t>());
  const cudaError_t error = cuda::launch_recurrence(p, nullptr);
  TORCH_CHECK(error == cudaSuccess, "launch: error ", static_cast<int>(error));
  return {y, hy};
}

// Restores the device when it is over.
void set_device(int64_t multiprocessors, int64_t major, int64_t clusters, int64_t shared_bytes) {
  device_on_host::Device& d = device_on_host::device();
  d.multiprocessors = static_cast<int>(multiprocessors);
  d.compute_major = static_cast<int>(major);
  d.clusters = static_cast<int>(clusters);
  d.shared_bytes_per_block = static_cast<int>(shared_bytes);
}

std::vector<int64_t> query_device(int64_t code_major) {
  cuda::RecurrenceDevice d{};
  const cudaError_t error = cuda::query_recurrence_device(static_cast<int>(code_major), d);
  TORCH_CHECK(error == cudaSuccess, "error ", static_cast<int>(error));
  return {d.multiprocessors, d.compute_major, d.clusters[0], d.clusters[1], d.clusters[2]};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_gru, m) {
  m.def("plan", plan);
  m.def("fits", fits);
  m.def("recurrence", recurrence);
  m.def("set_device", set_device);
  m.def("query_device", query_device);
}
