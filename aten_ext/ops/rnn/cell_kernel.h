// Which kernel carries out one step of a cell in one launch (cell_step.cuh), in numbers. Standard library
// only.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/math.h"
#include "ops/rnn/cell_sizes.h"

namespace aten_ext::cuda {

// How products are made: fp32 multiply-adds; tensor cores in 16 bits; tensor cores in TF32 (fp32 tensors).
enum class Math : uint8_t { Fma, Mma, MmaTf32 };

struct CellKernel {
  Math math;
  uint8_t rows;   // of the batch that a block serves: 1, 4 or, in fp32, 8 (Fma), 16 or 32 (tensor cores)
  uint8_t split;  // Fma: warps that share a unit, 1 or 4
  uint8_t loads;  // tensor cores: chunks of a warp under way, 4 or 2
};

// Tensor cores came with the instructions of sm_80.
constexpr int code_of(Math math) {
  return math == Math::Fma ? 75 : 80;
}

// Up to so many units (of both directions) all warps of a block share one: with a warp each they would not
// fill 132 SMs with loads. Several rows in fp32 of a GRU of 2048 units take 41 us so, and 75 with a warp
// each.
constexpr int64_t kUnitsToSplit = 1024;
constexpr int64_t kUnitsToSplitOfGruRows = 4096;
// Columns below which a quarter of them is less than one load a lane.
constexpr int64_t kColumnsToSplit = 256;
// Rows of the batch that a read of the weights serves with multiply-adds; in fp32, of more rows, twice as
// many.
constexpr int64_t kSeveralRows = 4;
constexpr int64_t kRowsOfFp32 = 8;
// Up to kSeveralRows rows of an RNN in fp32 are shorter so up to so many: 1408 units take 13 us, and 22 with
// a warp each. Six rows of 1152 units take 9.2 with a warp each, and 12.5 so.
constexpr int64_t kUnitsToSplitOfRnnRows = 1536;
// Tensor cores: units of a block. Rows up to which a warp has four chunks under way, and up to which a block
// has 16 (beyond, several blocks read the same weights).
constexpr int64_t kUnitsOfMma = 8;
constexpr int64_t kRowsOfManyLoads = 32;
constexpr int64_t kRowsOfOneTile = 64;
// With two chunks of a warp a multiprocessor has registers for so many blocks, with four for one: of a GRU
// and an LSTM in 16 bits.
constexpr int64_t kMmaBlocksPerSM = 2;

// Blocks of a launch on tensor cores.
constexpr int64_t mma_blocks(int64_t batch, int64_t hidden, int directions) {
  return ceil_div(hidden, kUnitsOfMma) * ceil_div(batch, batch <= kRowsOfOneTile ? 16 : 32) * directions;
}

constexpr bool has_several_gates(Cell cell) {
  return cell == Cell::Gru || cell == Cell::Lstm;
}

constexpr int64_t units_to_split(Cell cell, Dtype dtype, int64_t batch) {
  if (batch == 1 || dtype != Dtype::Float || cell == Cell::Lstm) {
    return kUnitsToSplit;
  }
  return cell == Cell::Gru       ? kUnitsToSplitOfGruRows
         : batch <= kSeveralRows ? kUnitsToSplitOfRnnRows
                                 : kUnitsToSplit;
}

constexpr CellKernel cell_kernel(Cell cell, Dtype dtype, bool tf32, int64_t batch, int64_t input,
                                 int64_t hidden, int directions, int64_t multiprocessors) {
  const int64_t units = hidden * directions;
  const int64_t blocks = mma_blocks(batch, hidden, directions);
  // In 16 bits so many units of a GRU have enough warps to read weights at full speed without tensor cores.
  const bool enough_warps = cell == Cell::Gru && blocks > kMmaBlocksPerSM * multiprocessors;
  const bool fma = dtype == Dtype::Float ? !tf32 : batch == 1 || (batch <= kSeveralRows && enough_warps);
  if (fma) {
    const bool split = units <= units_to_split(cell, dtype, batch) && hidden + input >= kColumnsToSplit;
    const int64_t rows = batch == 1 ? 1 : batch <= kSeveralRows ? kSeveralRows : kRowsOfFp32;
    return {Math::Fma, static_cast<uint8_t>(rows), static_cast<uint8_t>(split ? 4 : 1), 0};
  }
  const bool one_wave = dtype == Dtype::Float || !has_several_gates(cell) || blocks <= multiprocessors;
  return {dtype == Dtype::Float ? Math::MmaTf32 : Math::Mma,
          static_cast<uint8_t>(batch <= kRowsOfOneTile ? 16 : 32), 1,
          static_cast<uint8_t>(batch <= kRowsOfManyLoads && one_wave ? 4 : 2)};
}

}  // namespace aten_ext::cuda
