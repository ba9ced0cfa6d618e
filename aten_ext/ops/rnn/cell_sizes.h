// How large a recurrent cell is: what host and device both have to know of it. Standard library only.
#pragma once

namespace aten_ext::cuda {

// kGates: rows of W_ih and of W_hh for each hidden unit. kStates: values that a unit carries from step to
// step beside h.
struct GruSizes {
  static constexpr int kGates = 3;  // reset, update, new
  static constexpr int kStates = 0;
};

struct LstmSizes {
  static constexpr int kGates = 4;   // input, forget, cell, output
  static constexpr int kStates = 1;  // c
};

struct RnnSizes {
  static constexpr int kGates = 1;
  static constexpr int kStates = 0;
};

}  // namespace aten_ext::cuda
