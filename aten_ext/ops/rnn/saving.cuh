// Cells whose steps are remembered: a forward in training saves the coefficients of the gradients, of which
// nothing has to be found out again then. What is remembered of a step is in the State, until it is stored.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/rnn/arguments.cuh"
#include "ops/rnn/backward/make_coefficients.cuh"
#include "ops/rnn/backward/saved.cuh"
#include "ops/rnn/cells.cuh"

namespace aten_ext::cuda {

struct SavingGruCell : GruCell {
  static constexpr bool kSaves = true;
  using Saved = GruBackwardSizes;
  struct State : GruCell::State {
    Gates gates;
    float before;
  };

  static __device__ __forceinline__ float step(const Input& x, const float (&sum)[kGates], const Bias& bias,
                                               float h, State& state) {
    state.before = h;
    return step_of(x, sum, bias, h, state.gates);
  }
  static __device__ __forceinline__ void coefficients(float (&c)[Saved::kCoefficients], const State& state) {
    make_coefficients(c, state.gates.r, state.gates.z, state.gates.n, state.gates.hn, state.before);
  }
};

struct SavingLstmCell : LstmCell {
  static constexpr bool kSaves = true;
  using Saved = LstmBackwardSizes;
  struct State : LstmCell::State {
    Gates gates;
  };

  static __device__ __forceinline__ float step(const Input& x, const float (&sum)[kGates], const Bias& bias,
                                               float h, State& state) {
    return step_of(x, sum, bias, h, state, state.gates);
  }
  static __device__ __forceinline__ void coefficients(float (&c)[Saved::kCoefficients], const State& state) {
    make_coefficients(c, state.gates.i, state.gates.f, state.gates.g, state.gates.o, state.gates.before,
                      state.gates.squashed);
  }
};

// What no one waits for, of a row and unit that exist. Nothing of a cell that saves nothing.
template <typename Cell, typename Tensor>
__device__ __forceinline__ void save_step(const RnnArguments& a, const RnnPlace& place, int64_t step, int row,
                                          int unit, const typename Cell::State& state) {
  if constexpr (Cell::kSaves) {
    using Sizes = typename Cell::Saved;
    float c[Sizes::kCoefficients];
    Cell::coefficients(c, state);
    const int time = static_cast<int>(rnn_sequence(a, place).time(step));
    auto* to =
        static_cast<SavedBits<Tensor>*>(a.coefficients[place.direction]) + unit +
        static_cast<int64_t>(time * a.batch + place.first_row + row) * (Sizes::kCoefficients * a.hidden);
#pragma unroll
    for (int i = 0; i < Sizes::kCoefficients; ++i) {
      *to = to_saved<Sizes, Tensor>(i, c[i]);
      to += a.hidden;  // one address less to keep than from the first each time
    }
  }
}

}  // namespace aten_ext::cuda
