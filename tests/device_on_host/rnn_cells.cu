// Steps of the recurrent cells, one unit a thread, and offsets of sequences, for tests.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "ops/rnn/cells.cuh"
#include "ops/rnn/sequence.cuh"

namespace {

using namespace aten_ext::cuda;

// What step_kernel computes with: the loops' form, the form with the library's functions, or from the sums of
// a kernel that makes both products.
enum class Form : int64_t { Fast, Accurate, Finish };

struct Units {
  int count;
  const float* x;     // [count, gates]
  const float* sums;  // [count, gates]
  const float* b_ih;  // [gates, count] or nullptr
  const float* b_hh;
  const float* h;
  const float* c;  // or nullptr
  float* next_h;
  float* next_c;  // or nullptr
};

template <typename Cell>
__global__ void step_kernel(Units u, Form form) {
  const int unit = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (unit >= u.count) {
    return;
  }
  float x[Cell::kGates];
  float sum[Cell::kGates];
  float all[Cell::kSums] = {};
  for (int gate = 0; gate < Cell::kGates; ++gate) {
    x[gate] = u.x[unit * Cell::kGates + gate];
    sum[gate] = u.sums[unit * Cell::kGates + gate];
    all[Cell::input_sum(gate)] += x[gate];
    all[Cell::hidden_sum(gate)] += sum[gate];
  }
  typename Cell::State state;
  if constexpr (Cell::kStates > 0) {
    state.value[0] = u.c[unit];
  }
  float h = u.h[unit];
  if (form == Form::Fast) {
    const auto bias = Cell::template load_bias<float>(u.b_ih, u.b_hh, u.count, unit, true);
    h = Cell::step(Cell::input(x, bias), sum, bias, h, state);
  } else {
    const auto bias = Cell::template load_each_bias<float>(u.b_ih, u.b_hh, u.count, unit);
    h = form == Form::Accurate ? Cell::accurate_step(x, sum, bias, h, state)
                               : Cell::finish(all, bias, h, state);
  }
  u.next_h[unit] = h;
  if constexpr (Cell::kStates > 0) {
    u.next_c[unit] = state.value[0];
  }
}

using StepKernel = void (*)(Units, Form);

StepKernel kernel_of(const std::string& cell) {
  if (cell == "gru") {
    return step_kernel<GruCell>;
  }
  if (cell == "lstm") {
    return step_kernel<LstmCell>;
  }
  return cell == "tanh" ? step_kernel<RnnCell<Tanh>> : step_kernel<RnnCell<Relu>>;
}

// x and sums [units, gates], biases [gates * units] or none, h and c [units] -> h', c' (c for a cell without)
std::tuple<at::Tensor, at::Tensor> step(const std::string& cell, int64_t form, const at::Tensor& x,
                                        const at::Tensor& sums, const std::optional<at::Tensor>& b_ih,
                                        const std::optional<at::Tensor>& b_hh, const at::Tensor& h,
                                        const at::Tensor& c) {
  const at::Tensor next_h = at::empty_like(h);
  const at::Tensor next_c = c.clone();
  const auto data = [](const std::optional<at::Tensor>& t) {
    return t.has_value() ? t->const_data_ptr<float>() : nullptr;
  };
  const Units units{static_cast<int>(h.numel()),
                    data(x),
                    data(sums),
                    data(b_ih),
                    data(b_hh),
                    data(h),
                    data(c),
                    next_h.mutable_data_ptr<float>(),
                    next_c.mutable_data_ptr<float>()};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((units.count + 63) / 64));
  config.blockDim = dim3(64);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel_of(cell), units, static_cast<Form>(form));
  TORCH_CHECK(error == cudaSuccess, "launch: error ", static_cast<int>(error));
  return {next_h, next_c};
}

// Of every step: the offsets of the rows that take part, and then, if another step follows, how far the first
// row's next element is.
template <typename Sequence>
std::vector<std::vector<int64_t>> walk(const Sequence& sequence, const SequenceStrides& strides) {
  std::vector<std::vector<int64_t>> offsets;
  for (int64_t step = 0; step < sequence.steps; ++step) {
    auto& of_step = offsets.emplace_back();
    for (int row = 0; row < sequence.rows(step); ++row) {
      of_step.push_back(sequence.offset(strides, step, row));
    }
    if (step + 1 < sequence.steps) {
      of_step.push_back(sequence.advance(strides, step));
    }
  }
  return offsets;
}

std::vector<std::vector<int64_t>> walk_padded(int64_t steps, int64_t batch, int64_t direction,
                                              int64_t step_stride, int64_t row_stride) {
  return walk(PaddedSequence{steps, static_cast<int>(batch), static_cast<int>(direction)},
              {step_stride, row_stride});
}

std::vector<std::vector<int64_t>> walk_packed(at::IntArrayRef batch_sizes, int64_t direction,
                                              int64_t row_stride) {
  std::vector<int> first_row{0};
  for (const int64_t rows : batch_sizes) {
    first_row.push_back(first_row.back() + static_cast<int>(rows));
  }
  return walk(
      PackedSequence{static_cast<int64_t>(batch_sizes.size()), static_cast<int>(direction), first_row.data()},
      {0, row_stride});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(aten_ext_on_host_rnn_cells, m) {
  m.def(
      "step(str cell, int form, Tensor x, Tensor sums, Tensor? b_ih, Tensor? b_hh, Tensor h, Tensor c) -> "
      "(Tensor, Tensor)",
      step);
  m.def("walk_padded", walk_padded);
  m.def("walk_packed", walk_packed);
}
