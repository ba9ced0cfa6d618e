// One step of a recurrent layer on the CPU, product and gates in one pass, vectorised with at::vec. setup.py
// compiles it for AVX2 and for AVX-512; the ATen side calls what the machine has.
//
//   GRU    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z);  n = tanh(x_n + r h_n);  h = (h - n) z + n
//   LSTM   i, f, g, o = sigmoid, sigmoid, tanh, sigmoid(x_. + h_.);  c = f c + i g;  h = o tanh(c)
//   RNN    h = tanh(x + h_), or relu
//
// with x_. = W_ih x + b_ih, made beforehand, and h_. = W_hh h + b_hh. Sums run in the order of k whatever the
// tile, so that neither threads nor the batch change a bit.
//
// 2 gates H FLOPs for each row and unit. A panel of W_hh (gates x lanes x H) is read from the L2 once for all
// rows of the thread; each of its rows serves as many rows of the batch as a tile has.
#include "ops/rnn/cpu/kernels.h"
#include "ops/rnn/cpu/tile.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

// Vectors of units of each gate in a tile: one gate alone would leave most registers empty.
constexpr int vectors_of_gate(RnnCell cell) {
  return gates_of(cell) == 1 ? 2 : 1;
}

template <RnnCell cell_>
struct Shape {
  static constexpr RnnCell kCell = cell_;
  static constexpr int kGates = gates_of(cell_);
  static constexpr int kKept = kept_of(cell_);
  static constexpr int kOfGate = vectors_of_gate(cell_);
  static constexpr int kVectors = kGates * kOfGate;
  static constexpr int kRows = rows_of_tile(kVectors);
  static constexpr int kUnits = kOfGate * kLanes;  // of a block
};

// The state of row `row` before step `t`.
C10_ALWAYS_INLINE const float* state_before(const RnnForward& p, int64_t t, int64_t row) {
  const int64_t before = p.reverse ? t + 1 : t - 1;
  if (before < 0 || before >= p.steps.count || row >= p.steps.rows[before]) {
    return p.first_state + row * p.hidden;
  }
  return p.states + (p.steps.offsets[before] + row) * p.states_row;
}

// The gates of one vector of units from `unit` on, in row `row` of step `t`. `h`: W_hh h + b_hh of each gate.
template <class S>
C10_ALWAYS_INLINE void finish(const RnnForward& p, int64_t t, int64_t row, int64_t unit, const float* before,
                              const Vec (&h)[S::kGates]) {
  const int64_t hidden = p.hidden;
  const int64_t count = hidden - unit;
  const int64_t at = p.steps.offsets[t] + row;
  const float* const x = p.projections + at * S::kGates * hidden + unit;
  float* const kept = p.kept != nullptr ? p.kept + at * S::kKept * hidden + unit : nullptr;
  Vec state;
  if constexpr (S::kCell == RnnCell::Gru) {
    const Vec r = sigmoid(h[0] + load(x, count));
    const Vec z = sigmoid(h[1] + load(x + hidden, count));
    const Vec n = tanh(load(x + 2 * hidden, count) + h[2] * r);
    state = (load(before + unit, count) - n) * z + n;
    if (kept != nullptr) {
      store(r, kept, count);
      store(z, kept + hidden, count);
      store(n, kept + 2 * hidden, count);
      store(h[2], kept + 3 * hidden, count);
    }
  } else if constexpr (S::kCell == RnnCell::Lstm) {
    float* const cell_state = p.cell_state + row * hidden + unit;
    const Vec i = sigmoid(h[0] + load(x, count));
    const Vec f = sigmoid(h[1] + load(x + hidden, count));
    const Vec g = tanh(h[2] + load(x + 2 * hidden, count));
    const Vec o = sigmoid(h[3] + load(x + 3 * hidden, count));
    const Vec c = f * load(cell_state, count) + i * g;
    store(c, cell_state, count);
    state = o * tanh(c);
    if (kept != nullptr) {
      store(i, kept, count);
      store(f, kept + hidden, count);
      store(g, kept + 2 * hidden, count);
      store(o, kept + 3 * hidden, count);
      store(c, kept + 4 * hidden, count);
    }
  } else if constexpr (S::kCell == RnnCell::Tanh) {
    state = tanh(h[0] + load(x, count));
  } else {
    state = at::vec::clamp_min(h[0] + load(x, count), Vec(0.0f));
  }
  store(state, p.states + at * p.states_row + unit, count);
  if (p.output != nullptr) {
    store(state, p.output + at * p.states_row + unit, count);
  }
}

template <class S, int R>
void tile(const RnnForward& p, int64_t t, int64_t row, int64_t block) {
  const int64_t hidden = p.hidden;
  const float* before[R];
  for (int r = 0; r < R; ++r) {
    before[r] = state_before(p, t, row + r);
  }
  Vec sums[R][S::kVectors];
  for (int v = 0; v < S::kVectors; ++v) {
    const int64_t unit = block * S::kUnits + v % S::kOfGate * kLanes;
    const int64_t column = v / S::kOfGate * hidden + unit;
    const Vec bias = p.bias != nullptr && unit < hidden ? load(p.bias + column, hidden - unit) : Vec(0.0f);
    for (int r = 0; r < R; ++r) {
      sums[r][v] = bias;
      if (p.weights.product != nullptr && unit < hidden) {
        const float* const product = p.weights.product + (row + r) * S::kGates * hidden;
        sums[r][v] = bias + load(product + column, hidden - unit);
      }
    }
  }
  if (p.weights.product == nullptr) {
    multiply(sums, before, p.weights.panels + block * S::kVectors * kLanes * hidden, hidden);
  }
  for (int m = 0; m < S::kOfGate; ++m) {
    const int64_t unit = block * S::kUnits + m * kLanes;
    for (int r = 0; r < R && unit < hidden; ++r) {
      Vec gates[S::kGates];
      for (int g = 0; g < S::kGates; ++g) {
        gates[g] = sums[r][g * S::kOfGate + m];
      }
      finish<S>(p, t, row + r, unit, before[r], gates);
    }
  }
}

}  // namespace

int64_t forward_blocks(RnnCell cell, int64_t hidden) {
  const int64_t units = vectors_of_gate(cell) * kLanes;
  return (hidden + units - 1) / units;
}

int64_t forward_block_size(RnnCell cell, int64_t hidden) {
  return gates_of(cell) * vectors_of_gate(cell) * kLanes * hidden;
}

// panel[k][gate][unit] = w_hh[gate][unit][k]; 0 beyond the last unit.
void pack_forward(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks) {
  const int gates = gates_of(cell);
  const int64_t units = vectors_of_gate(cell) * kLanes;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    float* const panel = panels + block * forward_block_size(cell, hidden);
    const int64_t count = hidden - block * units < units ? hidden - block * units : units;
    for (int gate = 0; gate < gates; ++gate) {
      const float* const from = w_hh + (gate * hidden + block * units) * hidden;
      int64_t whole = 0;
      for (int64_t first = 0; first + kLanes <= count; first += kLanes) {
        for (whole = 0; whole + kLanes <= hidden; whole += kLanes) {
          at::vec::transpose_mxn<float, kLanes, kLanes>(from + first * hidden + whole, hidden,
                                                        panel + (whole * gates + gate) * units + first,
                                                        gates * units);
        }
      }
      const int64_t done = count / kLanes * kLanes;
      for (int64_t k = 0; k < hidden; ++k) {
        float* const to = panel + (k * gates + gate) * units;
        for (int64_t unit = k < whole ? done : 0; unit < units; ++unit) {
          to[unit] = unit < count ? from[unit * hidden + k] : 0;
        }
      }
    }
  }
}

void forward_step(const RnnForward& p, int64_t t, RnnRange rows, RnnRange blocks) {
  const RnnRange present{rows.begin, rows.end < p.steps.rows[t] ? rows.end : p.steps.rows[t]};
  with_cell(p.cell, [&](auto cell) {
    using S = Shape<decltype(cell)::value>;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      for_tiles<S::kRows>(present,
                          [&](auto size, int64_t row) { tile<S, decltype(size)::value>(p, t, row, block); });
    }
  });
}

const RnnKernels kRnnKernels{forward_blocks, forward_block_size, pack_forward,
                             forward_step,   backward_blocks,    backward_block_size,
                             pack_backward,  backward_step,      backward_first};

}  // namespace aten_ext::cpu::CPU_CAPABILITY
