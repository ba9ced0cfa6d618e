// What the two recurrences over the whole GPU share: how a warp waits for its columns of the state, and how
// it finishes a row. Kernels: gru_grid_fma.cuh (fp32) and gru_grid_mma.cuh (tensor cores).
//
// The blocks of a group have a slice of the hidden units each, and all of them need the whole state at every
// step. It goes through global memory in words that carry the number of their step (gru_exchange.cuh says why
// no barrier is needed, and why two buffers are enough), and it is the columns of W_hh that the eight warps
// of a block share: a warp multiplies 3 * units rows by its eighth of the columns, so it reads an eighth of
// the state, straight from the L2 into the registers that the product takes it from. No shared memory, no
// barrier of the block before the product; and a warp whose columns are there does not wait for the others'.
// Products of the eight parts meet in shared memory behind one barrier that only those warps wait for which
// finish a row. They are double-buffered, and so are that barrier's names: a warp may run a step ahead of
// another (its columns need not include its own block's units), never two.
//
// Budget of a step on an H200, H = 1024: the way of a word through the L2 0.7 us (a store, and a load that
// finds it); products 100 cycles (fp32, one row, 128 blocks: 96 FMAs in each of 256 threads) to 300 (16 bits,
// 8 rows, 64 blocks: 24 products of each warp); gates 200; sums, barrier and stores 400. That is 1.2 us. From
// 8 rows on, the L2: every block reads the state in words twice its size, 128 blocks 4.2 MB a poll.
//
// Measured, in cycles of 1.755 GHz, by a warp that finishes a row, one row (before gru_fast_unit and the
// inputs' way through shared memory took another 250):
//
//            wait for the words   products   sums of lanes   barrier   sums of parts   gates   store, inputs
//   fp32           1100             105           420           75          250          385        290
//   bf16            920             250           125           95          275          395        315
//
// As it is, us a step at H = 1024: fp32 1 row 1.15, 2 rows 1.5, 4 rows 2.1, 8 rows 3.6; 16 bits 1 row 1.36, 4
// rows 1.44, 2 groups of 8 rows 1.77, of 16 rows 2.7, of 32 rows 4.5; TF32 1 row 1.66, 2 groups of 8 rows
// 2.06, of 32 rows 6.0. H = 2048 in 16 bits: 1 row 2.3, 16 rows 4.7. Upstream takes 6 to 10. Beside its steps
// a launch took 7 us in fp32; in 16 bits 15 and at H = 2048 34, when each load of a weight still waited for
// the one before. What did not help: several copies of the state for the blocks to poll, a pause between
// polls or before the first, words in fewer blocks of 32 units (192 registers of weights: spilled), 16 warps.
// What mattered most is that a warp leaves its poll together, see GruPoll: 1.4 us of 2.7 in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/device/async_copy.cuh"
#include "cuda/device/flagged.cuh"
#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_exchange.cuh"
#include "cuda/device/gru_gates.cuh"
#include "cuda/device/sync.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

constexpr int kGridWarps = 8;
constexpr int kGridThreads = kGridWarps * 32;

// Where the words of this block's group are.
struct GruWords {
  uint64_t* first;  // of the group, buffer 0
  int64_t buffer;   // from one of the two buffers to the other

  __device__ __forceinline__ GruWords(const GruArguments& a, int64_t of_group)
      : first(a.words + static_cast<int64_t>(blockIdx.x) / a.blocks * of_group),
        buffer(static_cast<int64_t>(gridDim.x) / a.blocks * of_group) {}

  __device__ __forceinline__ uint64_t* of(int64_t step) const {
    return first + (step & 1) * buffer;
  }
};

// The words of a warp's columns of the state: kPairs pairs, kOfRow of them a row, at `from` + kRow * row +
// kNext * pair; of those the ones whose bit in `missing` is set. issue() sends for them, complete() returns
// as soon as all carry `tag` in their upper kTagBits, sending again for those that do not.
template <int kTagBits, int kPairs, int kOfRow, int kRow, int kNext>
struct GruPoll {
  const uint64_t* from;
  uint32_t missing;
  uint32_t tag;

  __device__ __forceinline__ void issue(WordPair (&pairs)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if ((missing >> i & 1) != 0) {
        pairs[i] = load_word_pair(from + i / kOfRow * kRow + i % kOfRow * kNext);
      }
    }
  }

  // All lanes of a warp together: it leaves them together, without which every shuffle after it would be
  // compiled, and run, as one for lanes that have lost one another (some 300 cycles each).
  __device__ __forceinline__ void complete(WordPair (&pairs)[kPairs]) {
    constexpr int kShift = 64 - kTagBits;
    for (uint32_t polls = 0;; ++polls) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        if (static_cast<uint32_t>(pairs[i].first >> kShift) == tag &&
            static_cast<uint32_t>(pairs[i].second >> kShift) == tag) {
          missing &= ~(1u << i);
        }
      }
      if (!__any_sync(0xffffffff, missing != 0)) {
        return;
      }
      if (polls == kMostPolls) {
        __trap();
      }
      issue(pairs);
    }
  }
};

// Behind it, a warp that finishes rows sees the sums of all; returns whether this one does. The others only
// arrive: their columns of the next step are what they wait for. A warp without columns would not wait at
// all.
__device__ __forceinline__ bool gru_meet(int64_t step, bool finishes, bool has_columns) {
  const int barrier = 1 + static_cast<int>(step & 1);
  if (finishes || !has_columns) {
    sync_named(barrier, kGridThreads);
  } else {
    arrive_named(barrier, kGridThreads);
  }
  return finishes;
}

// Products lie in two places by turns, those of a step where those of the last but one lay. That a warp which
// only arrives at gru_meet() does not overwrite what another still reads is seen to by the words: the ones it
// has waited for were sent by blocks that had the words of this block's finishing warps, which these computed
// from what they had read. racecheck knows nothing of an order that goes through global memory and reports
// the writes; compiled with ATEN_EXT_RACECHECK, the order goes through a named barrier as well, for it to
// check the rest (scripts/sanitize). Always, that would be up to 7 % of a step (H = 1024, one row, 16 bits).
__device__ __forceinline__ void gru_products_read([[maybe_unused]] int64_t step,
                                                  [[maybe_unused]] int64_t steps,
                                                  [[maybe_unused]] int finishing) {
#ifdef ATEN_EXT_RACECHECK
  if (finishing < kGridWarps && step + 2 < steps) {
    arrive_named(3 + static_cast<int>(step & 1), kGridThreads);
  }
#endif
}
__device__ __forceinline__ void gru_before_products([[maybe_unused]] int64_t step,
                                                    [[maybe_unused]] bool finishes) {
#ifdef ATEN_EXT_RACECHECK
  if (!finishes && step >= 2) {
    sync_named(3 + static_cast<int>(step & 1), kGridThreads);
  }
#endif
}

// A warp finishes kRowsOfWarp rows at a time, kItems times. Of its lanes, kParts have the same unit and row,
// share the sums and compute the same: with few rows, that is shorter.
template <typename Tensor, int kUnits, int kParts, int items_>
struct GruFinish {
  static constexpr int kItems = items_;
  static constexpr int kRowsOfWarp = 32 / (kUnits * kParts);
  static constexpr int kMostRows = kGridWarps * kRowsOfWarp * kItems;  // of a group
  // Shared memory for the inputs of the next step, of each thread its own. Registers would be spilled, and
  // then wait for the load.
  static constexpr int kInputs = kItems * 3 * kGridThreads;

  int unit;  // of the layer
  int part;
  int first_row;  // of this lane in the group
  bool exists;    // the unit
  GruBias bias;
  float carried[kItems];  // the state, in fp32 whatever the dtype
  float* inputs;
  const float* gates;  // of the step whose input is loaded next
  Tensor* y;           // of this step

  __device__ __forceinline__ GruFinish(const GruArguments& a, const GruPlace& place, float* shared, int warp,
                                       int lane)
      : unit(place.first_unit + lane % kUnits),
        part(lane / kUnits % kParts),
        first_row(warp * kRowsOfWarp + lane / (kUnits * kParts)),
        exists(unit < place.end_unit),
        bias{0.0f, 0.0f, 0.0f, 0.0f},
        inputs(shared + threadIdx.x) {
    const GruDirectionArguments& d = a.direction[place.direction];
    const int64_t time = gru_time(a, place.direction, 0);
    const int64_t batch_row = place.first_row + first_row;
    gates = d.gates + time * a.gate_step + batch_row * a.gate_row + unit;
    y = static_cast<Tensor*>(d.y) + time * a.y_step + batch_row * a.y_row + unit;
    bias = gru_load_bias<Tensor>(d, a.hidden, unit, exists);
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      carried[j] = 0.0f;
      if (exists && row(j) < place.rows) {
        const int64_t at = static_cast<int64_t>(place.first_row + row(j)) * a.hidden + unit;
        carried[j] = to_op(static_cast<const Tensor*>(d.h0)[at]);
      }
    }
    load_inputs(a, place);
  }

  static __device__ __forceinline__ int warps(int rows) {
    return min(kGridWarps, (rows + kRowsOfWarp - 1) / kRowsOfWarp);
  }
  __device__ __forceinline__ int row(int j) const {
    return first_row + j * kGridWarps * kRowsOfWarp;
  }

  // Of the next step: they have a whole step's time.
  __device__ __forceinline__ void load_inputs(const GruArguments& a, const GruPlace& place) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (exists && row(j) < place.rows) {
        const float* const from = gates + j * kGridWarps * kRowsOfWarp * a.gate_row;
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          copy_async_4(inputs + (j * 3 + gate) * kGridThreads, from + gate * static_cast<int64_t>(a.hidden));
        }
      }
    }
    commit_async_copies();
    gates += place.direction == 0 ? a.gate_step : -a.gate_step;
  }

  // h' of all items from this lane's shares of the sums. All lanes of a warp together.
  __device__ __forceinline__ void states(float (&state)[kItems], float (&sum)[kItems][3],
                                         const GruPlace& place) {
    wait_async_copies<0>();
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
#pragma unroll
      for (int width = kUnits; width < kUnits * kParts; width *= 2) {
#pragma unroll
        for (int gate = 0; gate < 3; ++gate) {
          sum[j][gate] += __shfl_xor_sync(0xffffffff, sum[j][gate], width);
        }
      }
      const float* const x = inputs + j * 3 * kGridThreads;
      const GruInput input{x[0] + bias.r, x[kGridThreads] + bias.z, x[2 * kGridThreads] + bias.in};
      const float value = gru_fast_unit(input, sum[j][0], sum[j][1], sum[j][2], bias.hn, carried[j]);
      state[j] = exists && row(j) < place.rows ? value : 0.0f;
    }
  }

  // Once the states are on their way to the others.
  __device__ __forceinline__ void write(const GruArguments& a, const GruPlace& place,
                                        const float (&state)[kItems], bool last) {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      carried[j] = state[j];
      if (exists && part == kParts - 1 && row(j) < place.rows) {
        y[j * kGridWarps * kRowsOfWarp * a.y_row] = from_op<Tensor>(state[j]);
        if (last) {
          const int64_t at = static_cast<int64_t>(place.first_row + row(j)) * a.hidden + unit;
          static_cast<Tensor*>(a.direction[place.direction].hy)[at] = from_op<Tensor>(state[j]);
        }
      }
    }
    y += place.direction == 0 ? a.y_step : -a.y_step;
  }
};

}  // namespace aten_ext::cuda
