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

// The gates of `R` rows from `row` on, for one vector of units from `unit` on, of which `count` exist. `h`:
// W_hh h + b_hh of each gate. Rows take turns, because the gates of one row wait for each other and those of
// several rows do not.
template <class S, int R>
C10_ALWAYS_INLINE void finish(const RnnForward& p, int64_t t, int64_t row, int64_t unit, int64_t count,
                              const float* const (&before)[R], const Vec (&h)[S::kGates][R]) {
  const int64_t hidden = p.hidden;
  const int64_t at = p.steps.offsets[t] + row;
  const auto x = [&](int r, int gate) {
    const float* const bias = p.input_bias;
    const Vec of_row = load(p.projections + ((at + r) * S::kGates + gate) * hidden + unit, count);
    return bias == nullptr ? of_row : of_row + load(bias + gate * hidden + unit, count);
  };
  const auto keep = [&](int r, int which, const Vec& value) {
    store(value, p.kept + ((at + r) * S::kKept + which) * hidden + unit, count);
  };
  Vec state[R];
  if constexpr (S::kCell == RnnCell::Gru) {
    Vec reset[R], update[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      reset[r] = sigmoid(h[0][r] + x(r, 0));
      update[r] = sigmoid(h[1][r] + x(r, 1));
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec n = tanh(x(r, 2) + h[2][r] * reset[r]);
      state[r] = (load(before[r] + unit, count) - n) * update[r] + n;
      if (p.kept != nullptr) {
        keep(r, 0, reset[r]);
        keep(r, 1, update[r]);
        keep(r, 2, n);
        keep(r, 3, h[2][r]);
      }
    }
  } else if constexpr (S::kCell == RnnCell::Lstm) {
    Vec c[R], o[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* const cell_state = p.cell_state + (row + r) * hidden + unit;
      const Vec i = sigmoid(h[0][r] + x(r, 0));
      const Vec f = sigmoid(h[1][r] + x(r, 1));
      const Vec g = tanh(h[2][r] + x(r, 2));
      o[r] = sigmoid(h[3][r] + x(r, 3));
      c[r] = f * load(cell_state, count) + i * g;
      store(c[r], cell_state, count);
      if (p.kept != nullptr) {
        keep(r, 0, i);
        keep(r, 1, f);
        keep(r, 2, g);
        keep(r, 3, o[r]);
        keep(r, 4, c[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      state[r] = o[r] * tanh(c[r]);
    }
  } else {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec sum = h[0][r] + x(r, 0);
      state[r] = S::kCell == RnnCell::Tanh ? tanh(sum) : at::vec::clamp_min(sum, Vec(0.0f));
    }
  }
  for (int r = 0; r < R; ++r) {
    store(state[r], p.states + (at + r) * p.states_row + unit, count);
    if (p.output != nullptr) {
      store(state[r], p.output + (at + r) * p.states_row + unit, count);
    }
  }
}

template <class S, int R>
void tile(const RnnForward& p, int64_t t, int64_t row, int64_t block) {
  const int64_t hidden = p.hidden;
  const float* before[R];
  for (int r = 0; r < R; ++r) {
    before[r] = state_before(p, t, row + r);
  }
  // Another core may have made the projections: they arrive during the product.
  for (int r = 0; r < R; ++r) {
    const float* const x =
        p.projections + (p.steps.offsets[t] + row + r) * S::kGates * hidden + block * S::kUnits;
    for (int gate = 0; gate < S::kGates; ++gate) {
      __builtin_prefetch(x + gate * hidden);
    }
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
    if (unit >= hidden) {
      break;
    }
    Vec gates[S::kGates][R];
    for (int g = 0; g < S::kGates; ++g) {
      for (int r = 0; r < R; ++r) {
        gates[g][r] = sums[r][g * S::kOfGate + m];
      }
    }
    // A whole vector, nearly always, needs no masks.
    if (hidden - unit >= kLanes) {
      finish<S, R>(p, t, row, unit, kLanes, before, gates);
    } else {
      finish<S, R>(p, t, row, unit, hidden - unit, before, gates);
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
