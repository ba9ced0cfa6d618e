// Which kernel carries out one step of a cell in one launch (cell_step.cuh), in numbers. Standard library
// only.
#pragma once

#include <cstdint>

#include "core/dtype.h"
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
// fill 132 SMs with loads. Several rows of a GRU of 2048 units take 41 us so, and 75 with a warp each.
constexpr int64_t kUnitsToSplit = 1024;
constexpr int64_t kUnitsToSplitOfGruRows = 4096;
// Columns below which a quarter of them is less than one load a lane.
constexpr int64_t kColumnsToSplit = 256;
// Rows of the batch that a read of the weights serves with multiply-adds; in fp32, of more rows, twice as
// many.
constexpr int64_t kSeveralRows = 4;
constexpr int64_t kRowsOfFp32 = 8;
// 16 bits: so many units of a GRU have enough warps to read weights at full speed without tensor cores.
constexpr int64_t kUnitsOfFma = 2048;
// Tensor cores: rows up to which a warp has four chunks under way (one row of blocks has the GPU to itself),
// and up to which a block has 16 rows (beyond, several blocks read the same weights).
constexpr int64_t kRowsOfManyLoads = 32;
constexpr int64_t kRowsOfOneTile = 64;

constexpr CellKernel cell_kernel(Cell cell, Dtype dtype, bool tf32, int64_t batch, int64_t input,
                                 int64_t hidden, int directions) {
  const int64_t units = hidden * directions;
  const bool enough_warps = cell == Cell::Gru && units >= kUnitsOfFma;
  const bool fma = dtype == Dtype::Float ? !tf32 : batch == 1 || (batch <= kSeveralRows && enough_warps);
  if (fma) {
    const int64_t most =
        cell == Cell::Gru && batch > 1 && dtype == Dtype::Float ? kUnitsToSplitOfGruRows : kUnitsToSplit;
    const bool split = units <= most && hidden + input >= kColumnsToSplit;
    const int64_t rows = batch == 1 ? 1 : batch <= kSeveralRows ? kSeveralRows : kRowsOfFp32;
    return {Math::Fma, static_cast<uint8_t>(rows), static_cast<uint8_t>(split ? 4 : 1), 0};
  }
  return {dtype == Dtype::Float ? Math::MmaTf32 : Math::Mma,
          static_cast<uint8_t>(batch <= kRowsOfOneTile ? 16 : 32), 1,
          static_cast<uint8_t>(batch <= kRowsOfManyLoads ? 4 : 2)};
}

}  // namespace aten_ext::cuda
