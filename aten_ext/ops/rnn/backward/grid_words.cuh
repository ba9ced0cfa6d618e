// How the gradients of gates travel between blocks all over the GPU, for products on tensor cores
// (grid_mma.cuh).
//
// Of a tile, 16 units of eight rows, lane 4 g + t of a warp takes units 4 t + {0..3} of row g, of each gate.
// They come in Shape::kVectors vectors of 16 bytes a lane. The lanes' first vectors lie side by side, then
// their second ones, and so on: a load of a warp is 512 bytes without a gap.
//
// A vector is two words of 64 bits, two units of a gate and a tag each, or in 16 bits a word of 128 bits,
// three pairs and one tag. With many rows the reads of words limit a step, so the bytes of tags count: of a
// GRU a lane reads 32 bytes a tile and not 48, of an LSTM 48 and not 64. An RNN has two pairs a lane, which
// are 16 bytes either way.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "ops/rnn/backward/shapes.h"
#include "ops/rnn/grid_mma.cuh"

namespace aten_ext::cuda {

// Words are polled, and then multiplied, in portions: kGates gates of kTiles tiles, in kVectors vectors a
// tile. The loads of kUnderWay portions are under way at once, as many as registers allow.

// Words of 64 bits: a vector is a gate.
template <typename Mma, typename Shape>
struct WordsOfGates {
  using Loads = PairOfWords<Mma::kTagBits>;
  static constexpr int kTiles = 4;
  static constexpr int kGates = 1;
  static constexpr int kVectors = 1;
  static constexpr int kPortions = Shape::kGates * Shape::kSteps / kTiles;
  static constexpr bool kFewRegisters = Shape::kKeptGates * Shape::kSteps * Mma::kRegisters <= 96;
  static constexpr int kUnderWay = kFewRegisters && kPortions % 3 == 0 ? 3 : kPortions % 2 == 0 ? 2 : 1;
  static_assert(Shape::kVectors == Shape::kGates);

  static __device__ __forceinline__ typename Mma::Operand operand(const WordPair* vectors, int /*gate*/) {
    return Mma::operand(vectors[0]);
  }

  // The gradients of this thread's unit and row, and those of its neighbour, the next unit. All lanes of a
  // warp together; `tile` is the first word, unit and row are the tile's.
  static __device__ __forceinline__ void send(uint64_t* tile, const float (&gradients)[Shape::kGates],
                                              int unit, int row, bool exists, uint32_t tag) {
    // All shuffles before the branch: behind it, each would wait for the lanes to meet again.
    uint64_t word[Shape::kGates];
#pragma unroll
    for (int gate = 0; gate < Shape::kGates; ++gate) {
      const float neighbour = __shfl_down_sync(0xffffffff, gradients[gate], 1);
      word[gate] = Mma::word(gradients[gate], neighbour, tag);
    }
    if (unit % 2 == 0 && exists) {
#pragma unroll
      for (int gate = 0; gate < Shape::kGates; ++gate) {
        store_word(tile + gate * kGridMmaWords + row * 8 + unit / 2, word[gate]);
      }
    }
  }
};

// Words of 128 bits: the first three gates of units 4 t + {0, 1}, the same of 4 t + {2, 3}, and the fourth
// gate of all, with a place left over. A portion has all gates of its units.
template <typename Mma, typename Shape>
struct WordsOfThreePairs {
  using Loads = WordOfThree;
  static constexpr int kGates = Shape::kGates;
  static constexpr int kVectors = Shape::kVectors;
  static constexpr int kWeights = Shape::kKeptGates * Shape::kSteps * Mma::kRegisters;
  static constexpr int kTiles = kWeights <= 96 ? 2 : 1;  // two: fewer votes of the warp; one: fewer registers
  static constexpr int kPortions = Shape::kSteps / kTiles;
  // Registers of weights and words, at most: with more, values are spilled that each step needs.
  static constexpr int kMostRegisters = 176;
  static constexpr int kUnderWay = [] {
    int portions = kPortions;
    while (kWeights + portions * kTiles * kVectors * 4 > kMostRegisters) {
      portions /= 2;
    }
    return portions;
  }();
  static_assert((kGates == 3 && kVectors == 2) || (kGates == 4 && kVectors == 3));

  static __device__ __forceinline__ typename Mma::Operand operand(const TaggedTriple* vectors, int gate) {
    return gate < 3 ? typename Mma::Operand{vectors[0].value[gate], vectors[1].value[gate]}
                    : typename Mma::Operand{vectors[kVectors - 1].value[0], vectors[kVectors - 1].value[1]};
  }

  // As above, shuffles included.
  static __device__ __forceinline__ void send(uint64_t* tile, const float (&gradients)[kGates], int unit,
                                              int row, bool exists, uint32_t tag) {
    uint32_t pair[kGates];
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      pair[gate] = Mma::pack(gradients[gate], __shfl_down_sync(0xffffffff, gradients[gate], 1));
    }
    uint32_t next_pair = 0;
    if constexpr (kGates == 4) {
      next_pair = __shfl_down_sync(0xffffffff, pair[3], 2);
    }
    if (unit % 2 == 0 && exists) {
      uint64_t* const to = tile + (row * 4 + unit / 4) * 2;
      store_triple(to + unit / 2 % 2 * kGridMmaWords, {{pair[0], pair[1], pair[2]}, tag});
      if constexpr (kGates == 4) {
        if (unit % 4 == 0) {
          store_triple(to + 2 * kGridMmaWords, {{pair[3], next_pair, 0}, tag});
        }
      }
    }
  }
};

template <typename Mma, typename Shape>
using GradientWords =
    std::conditional_t<Shape::kThreePairs, WordsOfThreePairs<Mma, Shape>, WordsOfGates<Mma, Shape>>;

}  // namespace aten_ext::cuda
