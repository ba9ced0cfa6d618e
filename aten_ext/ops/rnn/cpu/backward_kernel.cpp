// One step back of a recurrent layer on the CPU: what the step after it hands back through W_hh, and from it
// the gradients of the gates' sums, in one pass. setup.py compiles it for AVX2 and for AVX-512.
//
// With d the gradient of h (from above, and from the step after: dq W_hh + what passes by the product):
//
//   GRU    dn = d - d z, dz = d (h' - n), past the product d z;  p_n = dn (1 - n n), dr = p_n h_n
//          p_r, p_z = dr r (1 - r), dz z (1 - z);  q = p but for q_n = p_n r
//   LSTM   do = d tanh c, dc = d o (1 - tanh c tanh c) + dc';  di, df, dg = dc g, dc c', dc i, past it dc f
//   RNN    p = d (1 - h h), or d where h > 0
//
// p is the gradient of W_ih x + b_ih, q that of W_hh h + b_hh; dW, db and dx are GEMMs of them, made after
// all steps.
#include "ops/rnn/cpu/kernels.h"
#include "ops/rnn/cpu/tile.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

constexpr int kVectors = 2;
constexpr int kRows = rows_of_tile(kVectors);
constexpr int64_t kUnits = kVectors * kLanes;

// The step that ran after `t`, whose gradients a step back therefore has already.
C10_ALWAYS_INLINE int64_t step_after(const RnnBackward& p, int64_t t) {
  return p.reverse ? t - 1 : t + 1;
}
C10_ALWAYS_INLINE int64_t rows_of(const RnnBackward& p, int64_t t) {
  return t >= 0 && t < p.steps.count ? p.steps.rows[t] : 0;
}

C10_ALWAYS_INLINE Vec sigmoid_slope(const Vec& s) {
  return (Vec(1.0f) - s) * s;
}

template <RnnCell cell>
C10_ALWAYS_INLINE void finish(const RnnBackward& p, int64_t t, int64_t row, int64_t unit, bool last,
                              const Vec& product) {
  const int64_t hidden = p.hidden;
  const int64_t count = hidden - unit;
  const int64_t at = p.steps.offsets[t] + row;
  const int64_t of_row = row * hidden + unit;
  const auto or_zero = [&](const float* from, int64_t offset) {
    return from != nullptr ? load(from + offset, count) : Vec(0.0f);
  };
  Vec d = last ? or_zero(p.grad_last_state, of_row) : product;
  if (cell == RnnCell::Gru && !last) {
    d = d + load(p.carried + of_row, count);
  }
  if (p.grad_output != nullptr) {
    d = d + load(p.grad_output + at * p.states_row + unit, count);
  }
  const float* const kept = p.kept + at * kept_of(cell) * hidden + unit;
  float* const to = p.grad_input_gates + at * gates_of(cell) * hidden + unit;
  // Of the state, or of the cell state, before this step.
  const int64_t before = p.reverse ? t + 1 : t - 1;
  const bool is_first = row >= rows_of(p, before);
  const int64_t at_before = is_first ? 0 : p.steps.offsets[before] + row;
  if constexpr (cell == RnnCell::Gru) {
    const Vec h = load(is_first ? p.first_state + of_row : p.states + at_before * p.states_row + unit, count);
    const Vec r = load(kept, count);
    const Vec z = load(kept + hidden, count);
    const Vec n = load(kept + 2 * hidden, count);
    const Vec dz = d * z;
    const Vec p_n = (d - dz) * (Vec(1.0f) - n * n);
    const Vec p_r = p_n * load(kept + 3 * hidden, count) * sigmoid_slope(r);
    const Vec p_z = d * (h - n) * sigmoid_slope(z);
    float* const hidden_gates = p.grad_hidden_gates + at * 3 * hidden + unit;
    store(dz, p.carried + of_row, count);
    store(p_r, to, count);
    store(p_z, to + hidden, count);
    store(p_n, to + 2 * hidden, count);
    store(p_r, hidden_gates, count);
    store(p_z, hidden_gates + hidden, count);
    store(p_n * r, hidden_gates + 2 * hidden, count);
  } else if constexpr (cell == RnnCell::Lstm) {
    const float* const before_c =
        is_first ? p.first_cell + of_row : p.kept + (at_before * 5 + 4) * hidden + unit;
    const Vec i = load(kept, count);
    const Vec f = load(kept + hidden, count);
    const Vec g = load(kept + 2 * hidden, count);
    const Vec o = load(kept + 3 * hidden, count);
    const Vec tanh_c = tanh(load(kept + 4 * hidden, count));
    const Vec handed = last ? or_zero(p.grad_last_cell, of_row) : load(p.carried + of_row, count);
    const Vec dc = d * o * (Vec(1.0f) - tanh_c * tanh_c) + handed;
    store(dc * f, p.carried + of_row, count);
    store(dc * g * sigmoid_slope(i), to, count);
    store(dc * load(before_c, count) * sigmoid_slope(f), to + hidden, count);
    store(dc * i * (Vec(1.0f) - g * g), to + 2 * hidden, count);
    store(d * tanh_c * sigmoid_slope(o), to + 3 * hidden, count);
  } else {
    const Vec h = load(p.states + at * p.states_row + unit, count);
    const Vec zero(0.0f);
    store(cell == RnnCell::Tanh ? d * (Vec(1.0f) - h * h) : Vec::blendv(d, zero, h <= zero), to, count);
  }
}

// What q of the rows at `from` hands back through W_hh; q of row `row` + r in the r-th.
template <RnnCell cell, int R>
C10_ALWAYS_INLINE void hand_back(const RnnBackward& p, int64_t row, int64_t block,
                                 const float* const (&from)[R], Vec (&sums)[R][kVectors]) {
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const int64_t unit = block * kUnits + v * kLanes;
      const bool made = p.weights.product != nullptr && unit < p.hidden;
      sums[r][v] = made ? load(p.weights.product + (row + r) * p.hidden + unit, p.hidden - unit) : Vec(0.0f);
    }
  }
  if (p.weights.product == nullptr) {
    const int64_t size = gates_of(cell) * p.hidden;
    multiply(sums, from, p.weights.panels + block * kUnits * size, size);
  }
}

// `last`: the rows' last step, with nothing after it.
template <RnnCell cell, int R>
void tile(const RnnBackward& p, int64_t t, int64_t row, int64_t block, bool last) {
  Vec sums[R][kVectors];
  if (!last) {
    const float* from[R];
    for (int r = 0; r < R; ++r) {
      from[r] =
          p.grad_hidden_gates + (p.steps.offsets[step_after(p, t)] + row + r) * gates_of(cell) * p.hidden;
    }
    hand_back<cell, R>(p, row, block, from, sums);
  }
  for (int v = 0; v < kVectors; ++v) {
    const int64_t unit = block * kUnits + v * kLanes;
    for (int r = 0; r < R && unit < p.hidden; ++r) {
      finish<cell>(p, t, row + r, unit, last, last ? Vec(0.0f) : sums[r][v]);
    }
  }
}

// The first step of row `row`: the last one back.
int64_t first_step(const RnnBackward& p, int64_t row) {
  int64_t t = 0;
  while (p.reverse && t + 1 < p.steps.count && row < p.steps.rows[t + 1]) {
    ++t;
  }
  return t;
}

template <RnnCell cell, int R>
void first_tile(const RnnBackward& p, int64_t row, RnnRange blocks) {
  const float* from[R];
  for (int r = 0; r < R; ++r) {
    const int64_t at = p.steps.offsets[first_step(p, row + r)] + row + r;
    from[r] = p.grad_hidden_gates + at * gates_of(cell) * p.hidden;
  }
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    Vec sums[R][kVectors];
    hand_back<cell, R>(p, row, block, from, sums);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t unit = block * kUnits + v * kLanes;
      for (int r = 0; r < R && unit < p.hidden; ++r) {
        const int64_t of_row = (row + r) * p.hidden + unit;
        const int64_t count = p.hidden - unit;
        const Vec past = cell == RnnCell::Gru ? load(p.carried + of_row, count) : Vec(0.0f);
        store(sums[r][v] + past, p.grad_first_state + of_row, count);
      }
    }
  }
}

}  // namespace

int64_t backward_blocks(int64_t hidden) {
  return (hidden + kUnits - 1) / kUnits;
}

int64_t backward_block_size(RnnCell cell, int64_t hidden) {
  return gates_of(cell) * hidden * kUnits;
}

// panel[k][unit] = w_hh[k][unit]; 0 beyond the last unit.
void pack_backward(RnnCell cell, const float* w_hh, int64_t hidden, float* panels, RnnRange blocks) {
  const int64_t size = gates_of(cell) * hidden;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    float* const panel = panels + block * kUnits * size;
    const int64_t count = hidden - block * kUnits;
    for (int64_t k = 0; k < size; ++k) {
      for (int v = 0; v < kVectors; ++v) {
        const int64_t left = count - v * kLanes;
        const Vec value = left > 0 ? load(w_hh + k * hidden + block * kUnits + v * kLanes, left) : Vec(0.0f);
        value.store(panel + k * kUnits + v * kLanes);
      }
    }
  }
}

void backward_step(const RnnBackward& p, int64_t t, RnnRange rows, RnnRange blocks) {
  const auto clipped = [&](int64_t count) { return rows.end < count ? rows.end : count; };
  const int64_t end = clipped(p.steps.rows[t]);
  const int64_t going_on = clipped(rows_of(p, step_after(p, t)));
  const int64_t middle = going_on < rows.begin ? rows.begin : going_on < end ? going_on : end;
  with_cell(p.cell, [&](auto cell) {
    constexpr RnnCell kCell = decltype(cell)::value;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      for_tiles<kRows>({rows.begin, middle}, [&](auto size, int64_t row) {
        tile<kCell, decltype(size)::value>(p, t, row, block, /*last=*/false);
      });
      for_tiles<kRows>({middle, end}, [&](auto size, int64_t row) {
        tile<kCell, decltype(size)::value>(p, t, row, block, /*last=*/true);
      });
    }
  });
}

void backward_first(const RnnBackward& p, RnnRange rows, RnnRange blocks) {
  with_cell(p.cell, [&](auto cell) {
    constexpr RnnCell kCell = decltype(cell)::value;
    for_tiles<kRows>(
        rows, [&](auto size, int64_t row) { first_tile<kCell, decltype(size)::value>(p, row, blocks); });
  });
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
