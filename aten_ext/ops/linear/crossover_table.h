// Written by scripts/tune_linear.py from crossover_h200.json. Do not edit.
#pragma once

#include "ops/linear/crossover_cell.h"

namespace aten_ext {

// NVIDIA H200, torch 2.11.0+cu130: us on the GPU, CUDA-graph replays, weights read from memory.
// clang-format off
inline constexpr CrossoverCell kCrossoverCells[] = {
    // is_float, m from, m to, n, k, upstream, ours
    {false, 1, 8, 14336, 4096, 30.90f, 38.70f},
    {false, 1, 8, 13824, 5120, 36.70f, 46.30f},
    {false, 1, 8, 5120, 13824, 36.70f, 46.30f},
    {false, 1, 8, 5120, 5120, 16.40f, 18.20f},
    {true, 1, 1, 5120, 5120, 32.20f, 38.70f},
    {false, 17, 32, 5632, 2048, 8.90f, 10.10f},
    {false, 17, 32, 2048, 5632, 8.90f, 10.10f},
    {false, 17, 32, 6472, 896, 5.80f, 6.90f},
    {false, 17, 32, 896, 6472, 5.80f, 6.90f},
    {true, 17, 32, 18304, 40, 4.80f, 6.70f},
    {true, 17, 32, 40, 18304, 4.80f, 6.70f},
};
// clang-format on

}  // namespace aten_ext
