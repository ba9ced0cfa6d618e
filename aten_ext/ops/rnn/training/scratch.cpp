#ifdef ATEN_EXT_WITH_CUDA

#include "ops/rnn/training/scratch.h"

#include <algorithm>

#include "core/math.h"
#include "ops/rnn/training/column_sums.h"
#include "ops/rnn/training/dropout.h"
#include "ops/rnn/training/sizes.h"

namespace aten_ext::cuda {
namespace {

// fp32 sums of both directions that a gradient of the input has before it is rounded, or masked. And so few
// where they take no memory of their own.
constexpr int64_t kSumBytes = int64_t{32} << 20;
constexpr int64_t kFewSumBytes = int64_t{8} << 20;

constexpr int64_t kAlignment = 256;
// What two of them take at most beyond their own.
constexpr int64_t kAligned = 2 * kAlignment;

}  // namespace

char* Scratch::take(int64_t bytes) {
  char* const taken = reinterpret_cast<char*>(next_);
  next_ += static_cast<uintptr_t>(round_up(bytes, kAlignment));
  return taken;
}

float* Scratch::take_floats(int64_t count) {
  return reinterpret_cast<float*>(take(count * int64_t{sizeof(float)}));
}

Scratch::Scratch(const RnnBackwardPlan& plan, const LayerBackward& layer, const LayerSizes& sizes,
                 char* memory)
    : next_(reinterpret_cast<uintptr_t>(memory)) {
  const int64_t rows = sizes.most_rows;
  const int64_t states = sizes.directions * sizes.state();
  const bool has_weights = layer.direction[0].dw_ih != nullptr;
  const bool direct = sizes.bytes == sizeof(float);  // fp32 results are written where they go
  const bool recomputes = !plan.saved && (sizes.is_gru || sizes.is_lstm);
  // Of one direction they lie in y, a step later, but for the first; the library's products can take that.
  const bool in_y = sizes.directions == 1 && !plan.few_rows;
  if (sizes.is_packed ? recomputes : sizes.steps > 1 && ((has_weights && !in_y) || recomputes)) {
    previous[0] = take(sizes.directions * rows * sizes.hidden * sizes.bytes);
    previous[1] = sizes.at(previous[0], rows * sizes.hidden);
  }
  for (int d = 0; d < sizes.directions; ++d) {
    if (!plan.saved) {
      coefficients[d] =
          take_floats(most_rows_of(sizes.pieces) * coefficients_of(plan.problem.cell) * sizes.hidden);
    }
    d_hidden_gates[d] = take(rows * sizes.gates * sizes.bytes);
    d_input_gates[d] = sizes.is_gru ? take(rows * sizes.gates * sizes.bytes) : d_hidden_gates[d];
  }
  const int64_t padded = static_cast<int64_t>(next_ - reinterpret_cast<uintptr_t>(memory));
  if (sizes.is_packed) {
    carve_packed(plan, layer, sizes);
  }
  dh = direct && layer.dhx != nullptr ? static_cast<float*>(layer.dhx) : take_floats(states);
  if (sizes.is_lstm) {
    dc = direct && layer.dcx != nullptr ? static_cast<float*>(layer.dcx) : take_floats(states);
    const auto behind = static_cast<int64_t>(sizes.pieces.size()) - 1;
    boundaries = !plan.saved && behind > 0 ? take_floats(behind * states) : nullptr;
  }
  if (plan.one_launch) {
    for (int i = 0; i < 2; ++i) {
      passed_dh[i] = take_floats(states);
      passed_dc[i] = sizes.is_lstm ? take_floats(states) : nullptr;
    }
    words = reinterpret_cast<uint64_t*>(take(plan.recurrence.words * int64_t{sizeof(uint64_t)}));
  }
  if (layer.direction[0].db_ih != nullptr) {
    partial = take_floats(
        partial_sums(sizes.is_gru ? 2 * sizes.directions : sizes.directions, layer.rows, sizes.gates));
  }
  // The products of gates, and when these are over, the input's gradient in fp32.
  const uintptr_t shared = next_;
  if (recomputes) {
    carve_gates(plan, sizes);
  }
  const uintptr_t end = next_;
  next_ = shared;
  const bool drops = layer.kept[0] != nullptr;
  if (layer.wants_dx && (!direct || drops) && sizes.directions == 2 && !plan.few_rows) {
    // Of dropped inputs one for each direction, but in fp32 that of the first is where the result goes. Of a
    // packed sequence what was padded is not read any more.
    const int64_t row_bytes = layer.features * int64_t{sizeof(float)} * (drops ? 2 : 1);
    const int64_t room = sizes.is_packed ? padded - kAligned : 0;
    const bool over = room >= std::min(kFewSumBytes, layer.rows * row_bytes) &&
                      room >= std::min<int64_t>(layer.rows, kKeptOfByte) * row_bytes;
    const int64_t most = over ? std::min(room, kSumBytes) : kSumBytes;
    const int64_t whole = most / row_bytes / kKeptOfByte * kKeptOfByte;
    sums_rows = std::min(layer.rows, std::max<int64_t>(whole, kKeptOfByte));
    next_ = over ? reinterpret_cast<uintptr_t>(memory) : next_;
    sums[0] = direct ? nullptr : take_floats(sums_rows * layer.features);
    sums[1] = drops ? take_floats(sums_rows * layer.features) : nullptr;
  }
  const uintptr_t sums_end = next_;
  next_ = shared;
  if (layer.drops_x && has_weights && sizes.directions == 2 && plan.few_rows) {
    dropped = take(layer.rows * layer.features * sizes.bytes);
  }
  next_ = std::max({next_, sums_end, end});
  bytes = static_cast<int64_t>(next_ - reinterpret_cast<uintptr_t>(memory));
}

void Scratch::carve_packed(const RnnBackwardPlan& plan, const LayerBackward& layer, const LayerSizes& sizes) {
  const int64_t padded = sizes.most_rows * sizes.bytes;
  const int64_t row = layer.rows * sizes.bytes;
  const bool has_weights = layer.direction[0].dw_ih != nullptr;
  const bool recomputes = !plan.saved && (sizes.is_gru || sizes.is_lstm);
  for (int d = 0; d < sizes.directions; ++d) {
    packed_previous[d] = has_weights ? take(row * sizes.hidden) : nullptr;
    packed_d_input[d] = take(row * sizes.gates);
    packed_d_hidden[d] = has_weights && sizes.is_gru ? take(row * sizes.hidden) : nullptr;
    padded_x[d] = recomputes ? take(padded * layer.features) : nullptr;
  }
  const bool reads_y = !plan.saved && !recomputes;  // an RNN
  padded_y = reads_y ? take(padded * sizes.directions * sizes.hidden) : nullptr;
  padded_dy =
      layer.dy != nullptr || layer.d_hy != nullptr ? take(padded * sizes.directions * sizes.hidden) : nullptr;
}

// Where the gradients of gates of the piece that is computed last will be is room for the products of gates:
// it is written to after the coefficients were made. Of a packed sequence those of all pieces will be there.
void Scratch::carve_gates(const RnnBackwardPlan& plan, const LayerSizes& sizes) {
  int64_t products = 0;  // rows at once
  for (const Piece& piece : sizes.pieces) {
    products = std::max(products, std::min(plan.part, piece.steps) * piece.batch);
  }
  const Piece& last = sizes.pieces.front();
  const int64_t rows = sizes.is_packed ? sizes.most_rows : last.rows();
  const bool fit =
      products * int64_t{sizeof(float)} <= rows * sizes.bytes && sizes.gates * sizes.bytes % 16 == 0;
  for (int d = 0; d < sizes.directions; ++d) {
    const int64_t offset = sizes.is_packed ? 0 : sizes.row(last, d, last.first, last.steps) * sizes.gates;
    const auto room = [&](void* gradients) {
      return fit ? static_cast<float*>(sizes.at(gradients, offset)) : take_floats(products * sizes.gates);
    };
    input_gates[d] = room(d_input_gates[d]);
    hidden_gates[d] = sizes.is_gru ? room(d_hidden_gates[d]) : input_gates[d];
  }
}

}  // namespace aten_ext::cuda

#endif  // ATEN_EXT_WITH_CUDA
