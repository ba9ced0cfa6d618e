// How the kernels of a backward recurrence are cut, in numbers. No CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/math.h"
#include "ops/rnn/backward/coefficients.h"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// Turns that coefficients are fetched ahead, and steps that dy is asked for.
constexpr int kBackwardAhead = 4;

// Shared memory of what threads finish: slots [kBackwardAhead, kCoefficients + 1, threads], carried values
// [turns, threads].
template <class Sizes>
constexpr size_t backward_items_bytes(int rows, int rows_of_turn, int threads) {
  return sizeof(float) * threads *
         (kBackwardAhead * (Sizes::kCoefficients + 1) + ceil_div(rows, rows_of_turn));
}

// ---- a block or a cluster has all units of a group ----------------------------------------------------

// Multiply-adds (cluster_fma.cuh). `splits` parts of the warps have all columns of W_hh each, for a share of
// their block's gates, and of the warp's lanes `team` share those. What registers do not hold is in shared
// memory.
template <class Sizes, int blocks, int threads, int units, int splits, int team>
struct BackwardFmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kBlocks = blocks;
  static constexpr int kThreads = threads;
  static constexpr int kUnits = units;  // of a block
  static constexpr int kSplits = splits;
  static constexpr int kTeam = team;
  static constexpr int kDepth = kGates * units;                               // gates of a block's units
  static constexpr int kWeights = kDepth / splits / team;                     // of a thread and column
  static constexpr int kColumns = blocks * units * splits * team / threads;   // of a thread
  static constexpr int kMostWeights = kWeights * kColumns > 192 ? 176 : 192;  // of a thread in registers
  static constexpr int kKeptWeights = std::min(kWeights, kMostWeights / kColumns / 4 * 4);
  static constexpr int kSharedWeights = kWeights - kKeptWeights;
  static constexpr int kMaxHidden = blocks * units;
  static constexpr int kRowsOfTurn = threads / units;
  static constexpr int kParts = blocks * splits;  // of a unit's sum
  static_assert(kWeights % 4 == 0 && kColumns % team == 0 && units % 32 == 0);

  // Two barriers, gates' gradients [2, rows, kDepth], parts [2, kParts, rows, units], weights.
  ATEN_EXT_HOST_DEVICE static constexpr int floats(int rows) {
    return 4 + 2 * rows * (kDepth + kParts * units) + kSharedWeights * kColumns * threads;
  }
  static constexpr size_t shared_bytes(int rows) {
    return sizeof(float) * floats(rows) + backward_items_bytes<Sizes>(rows, kRowsOfTurn, threads);
  }
};

// Tensor cores (cluster_mma.cuh). A warp has kTiles times 16 columns of W_hh.
template <class Sizes, int operand_bytes, int blocks, int threads, int units, int splits>
struct BackwardMmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kOperandBytes = operand_bytes;
  static constexpr int kBlocks = blocks;
  static constexpr int kThreads = threads;
  static constexpr int kUnits = units;  // of a block
  static constexpr int kSplits = splits;
  static constexpr int kDepth = kGates * units;
  static constexpr int kPairColumns = kMmaPairBytes / operand_bytes;
  static constexpr int kPairs = kDepth / kPairColumns / splits;  // of mma of a warp and tile
  static constexpr int kWarps = threads / 32;
  static constexpr int kTiles = blocks * units / 16 * splits / kWarps;
  static constexpr int kMaxHidden = blocks * units;
  static constexpr int kRowsOfTurn = threads / units;
  static constexpr int kParts = blocks * splits;
  // Of a row of gates' gradients in shared memory, in operands: 64 bytes modulo 128, so that a warp reads
  // eight rows without bank conflict.
  static constexpr int kStride =
      (kDepth + 2 * kPairColumns - 1) / (2 * kPairColumns) * (2 * kPairColumns) + kPairColumns;
  static_assert(kPairs * splits * kPairColumns == kDepth && kTiles >= 1 && units % 32 == 0);

  ATEN_EXT_HOST_DEVICE static constexpr int padded(int rows) {
    return (rows + 7) / 8 * 8;
  }
  // Two barriers, gates' gradients [2, padded rows, kStride], parts [2, kParts, padded rows / 8, units, 8].
  ATEN_EXT_HOST_DEVICE static constexpr int floats(int rows) {
    return 4 + 2 * padded(rows) * (kStride * operand_bytes / 4 + kParts * units);
  }
  static constexpr size_t shared_bytes(int rows) {
    return sizeof(float) * floats(rows) + backward_items_bytes<Sizes>(rows, kRowsOfTurn, threads);
  }
};

// ---- the units are those of blocks all over the GPU ---------------------------------------------------

constexpr int kBackwardGridFmaUnits = 8;  // of a block

// Words of a group in one of the two buffers: [rows, gates, kGridFmaColumns].
template <class Sizes>
ATEN_EXT_HOST_DEVICE constexpr int64_t backward_grid_fma_words(int rows) {
  return static_cast<int64_t>(rows) * Sizes::kGates * kGridFmaColumns;
}

// Multiply-adds (grid_fma.cuh).
template <class Sizes>
struct BackwardGridFmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kRowsOfTurn = kGridThreads / kBackwardGridFmaUnits;
  // Sums of each warp's columns [2, kGridWarps, rows, units].
  ATEN_EXT_HOST_DEVICE static constexpr int floats(int rows) {
    return 2 * kGridWarps * rows * kBackwardGridFmaUnits;
  }
  static constexpr size_t shared_bytes(int rows) {
    return sizeof(float) * floats(rows) + backward_items_bytes<Sizes>(rows, kRowsOfTurn, kGridThreads);
  }
};

// Tensor cores (grid_mma.cuh): a warp has kSteps times 16 units of the layer, with all gates. What registers
// do not hold of W_hh, some of the gates, is in shared memory.
template <class Sizes, int operand_bytes, int steps>
struct BackwardGridMmaShape {
  static constexpr int kGates = Sizes::kGates;
  static constexpr int kSteps = steps;
  static constexpr int kRegisters = operand_bytes == 2 ? 4 : 8;  // of a tile of W_hh
  static constexpr int kMostRegisters = 128;
  static constexpr int kKeptGates = std::min(kGates, kMostRegisters / (steps * kRegisters));
  static constexpr int kSharedGates = kGates - kKeptGates;
  static constexpr int kMaxHidden = 16 * kGridWarps * steps;
  static constexpr int kRowsOfTurn = kGridThreads / kGridMmaUnits;
  static constexpr int kStride = kGridMmaUnits + 4;  // of a row's products, as in the forward
  // Vectors of words, of 16 bytes, that a lane reads of 16 units and eight rows: two pairs of units a gate.
  // In 16 bits a vector has three pairs, else a gate.
  static constexpr bool kThreePairs = operand_bytes == 2 && kGates > 1;
  static constexpr int kVectors = kThreePairs ? ceil_div(2 * kGates, 3) : kGates;

  ATEN_EXT_HOST_DEVICE static constexpr int weights() {
    return kSharedGates * steps * kRegisters * kGridThreads;
  }
  // Products of each warp [2, kGridWarps, padded rows, kStride].
  ATEN_EXT_HOST_DEVICE static constexpr int floats(int rows) {
    return weights() + 2 * kGridWarps * grid_mma_padded(rows) * kStride;
  }
  static constexpr size_t shared_bytes(int rows) {
    return sizeof(float) * floats(rows) + backward_items_bytes<Sizes>(rows, kRowsOfTurn, kGridThreads);
  }
  // 64-bit words of a group in one of the two buffers: [rows / 8, kGridWarps * steps, kVectors, lanes, 2].
  ATEN_EXT_HOST_DEVICE static constexpr int64_t words(int rows) {
    return grid_mma_words(rows, steps) * kVectors;
  }
};

// ---- the kernels there are ---------------------------------------------------------------------------

// Blocks, threads, units of a block, parts of the warps with the same columns, lanes with the same. With H up
// to 256 a cluster of 4 has registers for the weights of three gates, not of an LSTM's four.
template <class Sizes>
using BackwardFmaShapes = std::conditional_t<
    Sizes::kGates <= 3,
    Shapes<BackwardFmaShape<Sizes, 1, 128, 32, 4, 2>, BackwardFmaShape<Sizes, 1, 256, 64, 4, 4>,
           BackwardFmaShape<Sizes, 1, 256, 128, 2, 4>, BackwardFmaShape<Sizes, 4, 256, 32, 2, 2>,
           BackwardFmaShape<Sizes, 4, 256, 64, 1, 4>, BackwardFmaShape<Sizes, 8, 256, 32, 1, 4>,
           BackwardFmaShape<Sizes, 16, 256, 32, 1, 4>>,
    Shapes<BackwardFmaShape<Sizes, 1, 128, 32, 4, 2>, BackwardFmaShape<Sizes, 1, 256, 64, 4, 4>,
           BackwardFmaShape<Sizes, 1, 256, 128, 2, 4>, BackwardFmaShape<Sizes, 4, 256, 32, 2, 2>,
           BackwardFmaShape<Sizes, 8, 256, 32, 1, 4>, BackwardFmaShape<Sizes, 16, 256, 32, 1, 4>>>;
// Bytes of an operand, then as above.
template <class Sizes>
using BackwardMmaShapes =
    Shapes<BackwardMmaShape<Sizes, 2, 1, 256, 64, 2>, BackwardMmaShape<Sizes, 2, 1, 256, 128, 1>,
           BackwardMmaShape<Sizes, 2, 8, 256, 32, 1>, BackwardMmaShape<Sizes, 2, 16, 256, 32, 1>>;
// In TF32 a cluster of 16 has registers for the weights of a GRU; an RNN is faster over the whole GPU.
template <class Sizes>
using BackwardTf32Shapes = std::conditional_t<
    Sizes::kGates == 3,
    Shapes<BackwardMmaShape<Sizes, 4, 8, 256, 32, 1>, BackwardMmaShape<Sizes, 4, 16, 256, 32, 1>>,
    Shapes<BackwardMmaShape<Sizes, 4, 8, 256, 32, 1>>>;
// Bytes of an operand, times 16 units of a warp.
template <class Sizes>
using BackwardGridMmaShapes =
    Shapes<BackwardGridMmaShape<Sizes, 2, 8>, BackwardGridMmaShape<Sizes, 2, 16>>;  // H up to 1024, 2048
template <class Sizes>
using BackwardGridTf32Shapes =
    Shapes<BackwardGridMmaShape<Sizes, 4, 4>, BackwardGridMmaShape<Sizes, 4, 8>>;  // H up to 512, 1024

}  // namespace aten_ext::cuda
