// Whether cuDNN's recurrent layers draw the masks that cudnnDropoutForward draws, and leave the same states:
// asked of a layer stack whose output shows what was dropped in front of each layer.
//
// Its first layer puts out ones. Each later one passes its input on: without a state, and so that each of its
// units adds the input's unit of one direction and twice that of the other. All of it is small whole numbers,
// exact in every dtype.
#include "ops/rnn/training/cudnn_dropout.h"

#include <atomic>

namespace aten_ext::cuda {
namespace {

enum class Answer : uint8_t { Unknown, Same, Other };

constexpr int kDevices = 256;  // c10::DeviceIndex has 8 bits

// Of devices, dtypes (float32, float16, bfloat16) and directions. A GPU elsewhere has been asked nothing.
std::atomic<Answer> answers[kDevices][3][2];

std::atomic<Answer>& answer_of(c10::Device device, const RnnProblem& problem) {
  const int dtype = problem.dtype == Dtype::Float ? 0 : problem.dtype == Dtype::Half ? 1 : 2;
  return answers[static_cast<uint8_t>(device.index())][dtype][problem.directions - 1];
}

}  // namespace

const char* decline_dropout(c10::Device device, const RnnProblem& problem) {
  return answer_of(device, problem).load(std::memory_order_acquire) == Answer::Other
             ? "dropout that cuDNN draws in another way"
             : nullptr;
}

}  // namespace aten_ext::cuda

#ifdef ATEN_EXT_WITH_CUDA

#include <ATen/ops/_cudnn_init_dropout_state_cuda_dispatch.h>
#include <ATen/ops/_cudnn_rnn_cuda_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>
#include <mutex>
#include <vector>

#include "core/capture.h"
#include "ops/rnn/flat_weights.h"

namespace aten_ext::cuda {
namespace {

constexpr int64_t kSteps = 15;
constexpr int64_t kBatch = 63;
constexpr int64_t kRows = kSteps * kBatch;
constexpr int kLayers = 3;

struct Case {
  int64_t hidden;
  double p;  // whose scale is a power of two
};
// Numbers in whole vectors, and an odd count; more of them than cuDNN has generators, which are as many as
// threads of a GPU.
constexpr Case kCases[] = {{192, 0.5}, {193, 0.75}};

at::ScalarType scalar_type_of(Dtype dtype) {
  return dtype == Dtype::Float ? at::kFloat : dtype == Dtype::Half ? at::kHalf : at::kBFloat16;
}

RnnProblem probe_of(const RnnProblem& asked, int64_t hidden) {
  RnnProblem probe{};
  probe.cell = Cell::RnnRelu;
  probe.dtype = asked.dtype;
  probe.biases = true;
  probe.layers = kLayers;
  probe.directions = asked.directions;
  probe.hidden = hidden;
  probe.sequence = {kSteps, kBatch, 1, nullptr, Layout::TimeMajor};
  return probe;
}

// In cuDNN's order, on the CPU.
at::Tensor new_weights(const RnnProblem& probe) {
  const FlatWeights flat(probe);
  const int64_t hidden = probe.hidden;
  at::Tensor buffer = at::zeros({flat.elements()}, at::kFloat);
  float* const to = buffer.mutable_data_ptr<float>();
  for (int64_t index = 0; index < probe.layers * probe.directions; ++index) {
    for (int64_t unit = 0; unit < hidden; ++unit) {
      if (index < probe.directions) {
        to[flat.offset(index, 2) + unit] = 1.0f;
        continue;
      }
      float* const row = to + flat.offset(index, 0) + unit * probe.directions * hidden;
      for (int direction = 0; direction < probe.directions; ++direction) {
        row[direction * hidden + unit] = static_cast<float>(1 + direction);
      }
    }
  }
  return buffer;
}

// The list of weights as views of the buffer.
std::vector<at::Tensor> views_of(const at::Tensor& buffer, const RnnProblem& probe) {
  const FlatWeights flat(probe);
  const int64_t hidden = probe.hidden;
  std::vector<at::Tensor> views;
  for (int64_t index = 0; index < probe.layers * probe.directions; ++index) {
    const int64_t columns = index < probe.directions ? 1 : probe.directions * hidden;
    views.push_back(buffer.narrow(0, flat.offset(index, 0), hidden * columns).view({hidden, columns}));
    views.push_back(buffer.narrow(0, flat.offset(index, 1), hidden * hidden).view({hidden, hidden}));
    views.push_back(buffer.narrow(0, flat.offset(index, 2), hidden));
    views.push_back(buffer.narrow(0, flat.offset(index, 3), hidden));
  }
  return views;
}

// What the stack puts out, [rows, directions * hidden] on the CPU, if masks are drawn as drop_output() draws
// them (cudnn_rnn.cpp). Empty: cuDNN did not draw.
at::Tensor expected(const RnnProblem& probe, double p, const at::Tensor& states) {
  const int64_t columns = probe.directions * probe.hidden;
  const auto scale = static_cast<float>(1.0 / (1.0 - p));
  CudnnDropout dropout(p, states, kRows, columns);
  if (!dropout.is_ready()) {
    return {};
  }
  at::Tensor x = at::full({kRows, columns}, 1.0f, at::kFloat);
  for (int layer = 1; layer < kLayers; ++layer) {
    const at::Tensor y = at::zeros({kRows, columns}, at::kFloat);
    const float* const from = x.const_data_ptr<float>();
    float* const to = y.mutable_data_ptr<float>();
    for (int direction = 0; direction < probe.directions; ++direction) {
      const at::Tensor drawn = at::empty({dropout.bytes()}, states.options());
      if (!dropout.draw(drawn.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream())) {
        return {};
      }
      const at::Tensor numbers =
          drawn.narrow(0, 0, 2 * kRows * columns).view(at::kHalf).to(at::kCPU).to(at::kFloat);
      const float* const kept = numbers.const_data_ptr<float>();
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t column = 0; column < columns; ++column) {
          const int64_t i = row * columns + column;
          const int64_t unit = column % probe.hidden;
          const auto factor = static_cast<float>(1 + column / probe.hidden);
          to[row * columns + direction * probe.hidden + unit] +=
              kept[i] > 0.0f ? factor * scale * from[i] : 0.0f;
        }
      }
    }
    x = y;
  }
  return x;
}

bool draws_the_same(c10::Device device, const RnnProblem& asked, const Case& c) {
  const RnnProblem probe = probe_of(asked, c.hidden);
  const at::TensorOptions options = at::TensorOptions(device).dtype(scalar_type_of(asked.dtype));
  const at::Tensor states = at::cuda::_cudnn_init_dropout_state(c.p, true, 1234, options.dtype(at::kByte));
  const at::Tensor ours = states.clone();
  const at::Tensor buffer = new_weights(probe).to(options);
  const at::Tensor y = std::get<0>(
      at::cuda::_cudnn_rnn(at::zeros({kSteps, kBatch, 1}, options), views_of(buffer, probe), 4, buffer,
                           at::zeros({kLayers * probe.directions, kBatch, probe.hidden}, options),
                           std::nullopt, static_cast<int64_t>(probe.cell), probe.hidden, 0, kLayers, false,
                           c.p, true, probe.directions == 2, {}, states));
  const at::Tensor drawn = expected(probe, c.p, ours);
  return drawn.defined() && states.equal(ours) &&
         y.view({kRows, probe.directions * probe.hidden}).to(at::kCPU).to(at::kFloat).equal(drawn);
}

Answer ask(c10::Device device, const RnnProblem& asked) {
  // Another thread may capture a graph, where memory is allocated by this thread's own leave.
  const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
  try {
    for (const Case& c : kCases) {
      if (!draws_the_same(device, asked, c)) {
        return Answer::Other;
      }
    }
    return Answer::Same;
  } catch (const std::exception&) {
    return Answer::Other;  // it cannot be asked: no memory, or a cuDNN without such layers
  }
}

}  // namespace

bool may_draw_dropout(c10::Device device, const RnnProblem& problem) {
  std::atomic<Answer>& answer = answer_of(device, problem);
  if (answer.load(std::memory_order_acquire) == Answer::Unknown) {
    if (is_capturing(device)) {
      return false;
    }
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (answer.load(std::memory_order_acquire) == Answer::Unknown) {
      answer.store(ask(device, problem), std::memory_order_release);
    }
  }
  return answer.load(std::memory_order_acquire) == Answer::Same;
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
