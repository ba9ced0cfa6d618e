// How the kernels of a recurrence are cut, in numbers: what they are compiled with, and what choose() has to
// know of them on any machine. No CUDA.
//
// Functions that kernels call spell rounding up out: through round_up() ptxas makes other code of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/math.h"
#include "ops/rnn/cell_sizes.h"

namespace aten_ext::cuda {

// ---- a block or a cluster has the whole state --------------------------------------------------------

// Multiply-adds (cluster_fma.cuh). kThreads: at most. The launch bounds name one block an SM: otherwise ptxas
// saves registers at the price of waiting for each load of h.
template <int blocks, int threads, int team, int units, int vectors, typename Sizes = GruSizes>
struct ClusterFmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kStates = Sizes::kStates;
  static constexpr int kBlocks = blocks;  // of a cluster; 1: a block alone
  static constexpr int kThreads = threads;
  static constexpr int kTeam = team;
  static constexpr int kUnits = units;       // of a team
  static constexpr int kVectors = vectors;   // of a thread
  static constexpr int kColumns = 4 * team;  // of a vector
  static constexpr int kUnitsOfWarp = 32 / team * units;
  static constexpr int kLanes = team / units;  // that have the same unit's sums
  static constexpr int kRows = kLanes;         // of the batch in a turn: each of them finishes another
  static constexpr int kAhead = 4;             // turns that projections are fetched ahead
  // In 16 bits tensor cores are faster than twice the groups.
  static constexpr bool kFp32Alone = blocks == 4;
  static_assert(units <= team && 32 % team == 0);

  // Columns of a row of h in shared memory: whole vectors, and the units of all blocks.
  ATEN_EXT_HOST_DEVICE static constexpr int columns(int units_of_block) {
    const int of_blocks = kBlocks * units_of_block;
    const int of_vectors = kVectors * kColumns;
    return of_blocks > of_vectors ? of_blocks : of_vectors;
  }
  // Two mbarriers, h [2, rows, columns], projections [kAhead, kGates, kThreads], carried states [turns,
  // kStates, kThreads].
  static constexpr size_t shared_bytes(int rows_of_group, int warps) {
    return 16 +
           sizeof(float) * (2 * static_cast<size_t>(rows_of_group) * columns(warps * kUnitsOfWarp) +
                            kAhead * kGates * kThreads + ceil_div(rows_of_group, kRows) * kStates * kThreads);
  }
};

// A pair of mma covers 64 bytes of a row: 32 columns of 16 bits, 16 in TF32.
constexpr int kMmaPairBytes = 64;

// Tensor cores (cluster_mma.cuh). kThreads: at most. Operands: 2 bytes, or 4 in TF32.
template <int operand_bytes, int blocks, int threads, int splits, int pairs, int tiles,
          typename Sizes = GruSizes>
struct ClusterMmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kStates = Sizes::kStates;
  static constexpr int kOperandBytes = operand_bytes;
  static constexpr int kBlocks = blocks;  // of a cluster; 1: a block alone
  static constexpr int kThreads = threads;
  static constexpr int kSplits = splits;  // of the columns, each another warp's
  static constexpr int kPairs = pairs;    // of mma of a warp and tile
  static constexpr int kTiles = tiles;    // of 8 rows of the batch at once
  static constexpr int kPairColumns = kMmaPairBytes / operand_bytes;
  static constexpr int kColumns = kPairColumns * pairs * splits;          // of h that products cover
  static constexpr int kResults = 4 * tiles;                              // of a lane, each with all gates
  static constexpr int kOwn = kResults > splits ? kResults / splits : 1;  // that it finishes
  static constexpr int kAhead = 4;                                        // turns, as above
  static constexpr int kUnits = 16;                                       // of a warp

  ATEN_EXT_HOST_DEVICE static constexpr int padded_rows(int rows_of_group) {
    return (rows_of_group + 8 * kTiles - 1) / (8 * kTiles) * (8 * kTiles);
  }
  // Of h in shared memory, in operands: 64 bytes modulo 128.
  ATEN_EXT_HOST_DEVICE static constexpr int row_stride(int units_of_block) {
    const int columns = kBlocks * units_of_block > kColumns ? kBlocks * units_of_block : kColumns;
    return (columns + 2 * kPairColumns - 1) / (2 * kPairColumns) * (2 * kPairColumns) + kPairColumns;
  }
  ATEN_EXT_HOST_DEVICE static constexpr int warps(int units_of_block) {
    return units_of_block / kUnits * kSplits;
  }
  // Floats: products that warps exchange [2, groups, splits, kResults, kGates, 32].
  ATEN_EXT_HOST_DEVICE static constexpr int products(int units_of_block) {
    return kSplits == 1 ? 0 : 2 * warps(units_of_block) * kResults * kGates * 32;
  }
  // Two mbarriers, h [2, rows, row_stride], products, projections [kAhead, kOwn * kGates, kThreads], h and
  // the carried states in fp32 [rows / (8 kTiles), kOwn * (1 + kStates), kThreads].
  static constexpr size_t shared_bytes(int rows_of_group, int units_of_block) {
    return 16 + size_t{2} * kOperandBytes * padded_rows(rows_of_group) * row_stride(units_of_block) +
           sizeof(float) *
               (products(units_of_block) +
                kOwn * kThreads *
                    (kAhead * kGates + (1 + kStates) * padded_rows(rows_of_group) / (8 * kTiles)));
  }
};

// ---- the state is that of blocks all over the GPU ----------------------------------------------------

constexpr int kGridWarps = 8;
constexpr int kGridThreads = kGridWarps * 32;

// How rows are finished (grid.cuh): kParts lanes share a unit and row, kItems rows are a lane's.
template <int units, int parts, int items, typename Sizes = GruSizes>
struct GridFinishShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kUnits = units;
  static constexpr int kParts = parts;
  static constexpr int kItems = items;
  static constexpr int kRowsOfWarp = 32 / (units * parts);
  static constexpr int kMaxRows = kGridWarps * kRowsOfWarp * items;  // of a group
  // Floats of shared memory for the inputs of the next step, of each thread its own. Registers would be
  // spilled, and then wait for the load.
  static constexpr int kInputs = items * kGates * kGridThreads;
};

constexpr int kGridFmaColumns = 1024;

// Words of a group in one of the two buffers.
ATEN_EXT_HOST_DEVICE constexpr int64_t grid_fma_words(int rows) {
  return static_cast<int64_t>(rows) * kGridFmaColumns;
}

// Multiply-adds (grid_fma.cuh): kUnits of a block, kRows at once in products.
template <int units, int rows, int parts, int items, typename Sizes = GruSizes>
struct GridFmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kUnits = units;
  static constexpr int kRows = rows;
  static constexpr int kParts = parts;
  static constexpr int kItems = items;
  using Finish = GridFinishShape<units, parts, items, Sizes>;

  // Units of a group's rows in shared memory: whole turns of kRows.
  ATEN_EXT_HOST_DEVICE static constexpr int sums(int rows_of_group) {
    return (rows_of_group + rows - 1) / rows * rows * units;
  }
  // Inputs, partial sums [2, kGates, kGridWarps, sums()].
  static constexpr size_t shared_bytes(int rows_of_group) {
    return sizeof(float) * (Finish::kInputs + 2 * kGates * kGridWarps * sums(rows_of_group));
  }
};

constexpr int kGridMmaUnits = 16;
constexpr int kGridMmaWords = 64;  // that one block publishes of eight rows
// From a row's products to the next's: 4 modulo 16, so that the corners of a fragment fall into 32 banks.
template <typename Sizes>
constexpr int kGridMmaProductStride = Sizes::kGates * kGridMmaUnits + 4;

// Rows of a group, eight at a time.
ATEN_EXT_HOST_DEVICE constexpr int grid_mma_padded(int rows) {
  return (rows + 7) / 8 * 8;
}
// From one warp's products to the next's: 16 modulo 32, for the two halves of a warp read two of them.
template <typename Sizes>
ATEN_EXT_HOST_DEVICE constexpr int grid_mma_part(int rows) {
  return grid_mma_padded(rows) * kGridMmaProductStride<Sizes> + 16;
}
// Words of a group in one of the two buffers: [rows / 8, 16 columns, row of eight, 8].
ATEN_EXT_HOST_DEVICE constexpr int64_t grid_mma_words(int rows, int steps) {
  return static_cast<int64_t>(grid_mma_padded(rows)) / 8 * kGridWarps * steps * kGridMmaWords;
}

// Tensor cores (grid_mma.cuh): kSteps times 16 columns of a warp, kTiles of eight rows at once. Of the
// weights that registers have no room for, a thread has kSharedVectors times 16 bytes a gate in shared
// memory.
template <int steps, int parts, int items, int tiles, typename Sizes = GruSizes, int shared_vectors = 0>
struct GridMmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kSteps = steps;
  static constexpr int kParts = parts;
  static constexpr int kItems = items;
  static constexpr int kTiles = tiles;
  static constexpr int kSharedVectors = shared_vectors;
  static constexpr int kSharedWeights = 16 * kGates * shared_vectors * kGridThreads;  // bytes
  using Finish = GridFinishShape<kGridMmaUnits, parts, items, Sizes>;
  static constexpr int kProductStride = kGridMmaProductStride<Sizes>;

  ATEN_EXT_HOST_DEVICE static constexpr int part(int rows) {
    return grid_mma_part<Sizes>(rows);
  }

  // Inputs, products [2, kGridWarps, padded rows, kProductStride], weights [kGates, kSharedVectors, threads].
  static constexpr size_t shared_bytes(int rows) {
    return sizeof(float) * (Finish::kInputs + 2 * kGridWarps * part(rows)) + kSharedWeights;
  }
};

// fp32 beyond the registers (fma.cuh). kThreads: at most.
template <int threads, int team, int units, int vectors, int rows, typename Sizes = GruSizes>
struct FmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kThreads = threads;
  static constexpr int kTeam = team;
  static constexpr int kUnits = units;       // of a team
  static constexpr int kVectors = vectors;   // in registers
  static constexpr int kRows = rows;         // of the batch at once
  static constexpr int kColumns = 4 * team;  // of a vector
  static constexpr int kUnitsOfWarp = 32 / team * units;
  static_assert(units * rows <= team, "a lane finishes one unit");

  // Columns of a row of h in shared memory: whole vectors.
  ATEN_EXT_HOST_DEVICE static constexpr int columns(int hidden) {
    return (hidden + kColumns - 1) / kColumns * kColumns;
  }
  // h [rows, columns], weights [shared_vectors, kUnits * kGates, warps, 32] of float4.
  static constexpr size_t shared_bytes(int hidden, int rows_of_group, int warps, int shared_vectors) {
    return static_cast<size_t>(round_up(rows_of_group, kRows)) * columns(hidden) * sizeof(float) +
           static_cast<size_t>(shared_vectors) * warps * kUnits * kGates * 32 * 4 * sizeof(float);
  }
};

// ---- lists of shapes: cell_shapes.h ------------------------------------------------------------------

template <typename... S>
struct Shapes {
  // The index of the first for which takes(S{}) is true, or -1.
  template <class Takes>
  static constexpr int first(const Takes& takes) {
    int index = 0;
    return ((takes(S{}) || (++index, false)) || ...) ? index : -1;
  }
};

}  // namespace aten_ext::cuda
