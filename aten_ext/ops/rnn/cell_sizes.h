// The recurrent cells and how large they are: what host and device both have to know of them. Standard
// library only.
#pragma once

#include <cstdint>

namespace aten_ext::cuda {

// With the numbers of cudnnRNNMode_t, which PyTorch passes.
enum class Cell : uint8_t { RnnRelu, RnnTanh, Lstm, Gru };

// kGates: rows of W_ih and of W_hh for each hidden unit. kStates: values that a unit carries from step to
// step beside h.
struct GruSizes {
  using Sizes = GruSizes;
  static constexpr int kGates = 3;  // reset, update, new
  static constexpr int kStates = 0;
};

struct LstmSizes {
  using Sizes = LstmSizes;
  static constexpr int kGates = 4;   // input, forget, cell, output
  static constexpr int kStates = 1;  // c
};

struct RnnSizes {
  using Sizes = RnnSizes;
  static constexpr int kGates = 1;
  static constexpr int kStates = 0;
};

// visit(sizes of the cell)
template <class Visit>
constexpr auto with_sizes(Cell cell, const Visit& visit) {
  switch (cell) {
    case Cell::Lstm:
      return visit(LstmSizes{});
    case Cell::Gru:
      return visit(GruSizes{});
    default:
      return visit(RnnSizes{});
  }
}

constexpr int gates_of(Cell cell) {
  return with_sizes(cell, [](auto sizes) { return decltype(sizes)::kGates; });
}
constexpr bool has_cell_state(Cell cell) {
  return with_sizes(cell, [](auto sizes) { return decltype(sizes)::kStates > 0; });
}

}  // namespace aten_ext::cuda
