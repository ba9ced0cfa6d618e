// What was seen of cuDNN 9.19 on an H200, as data for the policy (plan.cpp); the figures are in
// docs/kernels/rnn.md. Standard library only.
#pragma once

#include <cstdint>

#include "ops/rnn/layers_in_ranges.h"
#include "ops/rnn/problem.h"

namespace aten_ext::cuda {

// Where cuDNN multiplies the state in TF32, if it may, seen by its error: above a hidden size in larger
// batches, from another on in all of two rows and more; one number of rows has a size of its own. By Cell. Up
// to the first of these sizes it has kernels of its own for small layers, in fp32 and fp16, whose first step
// is long.
struct CudnnTf32 {
  int64_t beyond_hidden, rows, any_rows_hidden;
  int64_t other_rows, other_rows_hidden;
};
constexpr CudnnTf32 kCudnnTf32[] = {
    {384, 17, 640, 16, 752}, {384, 17, 640, 16, 752}, {192, 17, 448, 0, 0}, {192, 17, 600, 16, 496}};

constexpr const CudnnTf32& cudnn_tf32(Cell cell) {
  return kCudnnTf32[static_cast<int>(cell)];
}

// It does so whatever the layer's input is, if H is a multiple of so many. Of other H some are in fp32.
constexpr int64_t kTf32Vector = 4;

constexpr bool has_tf32_state(Cell cell, int64_t batch, int64_t hidden) {
  const CudnnTf32& cudnn = cudnn_tf32(cell);
  const int64_t from = batch >= cudnn.rows         ? 0
                       : batch == cudnn.other_rows ? cudnn.other_rows_hidden
                                                   : cudnn.any_rows_hidden;
  return batch > 1 && hidden > cudnn.beyond_hidden && hidden >= from;
}

// Where it multiplies a layer's input in TF32, if it may, seen in the same way: always, if columns and rows
// (steps times batch) are many; in its kernels of small layers, and in a layer by itself. Of fewer, and in
// stacks of larger layers, some are in fp32, by no rule that was found.
struct Tf32Projection {
  int64_t beyond_columns, beyond_rows;
};
constexpr Tf32Projection kTf32ProjectionOfSmall{80, 16};
constexpr Tf32Projection kTf32ProjectionOfOne{108, 48};

constexpr bool is_beyond(const Tf32Projection& least, int64_t columns, int64_t rows) {
  return columns > least.beyond_columns && rows > least.beyond_rows;
}

constexpr bool is_small_layer(Cell cell, int64_t hidden) {
  return hidden <= cudnn_tf32(cell).beyond_hidden;
}

constexpr bool has_tf32_projection(Cell cell, int layers, int64_t hidden, int64_t columns, int64_t rows) {
  const bool is_small = is_small_layer(cell, hidden);
  return (is_small || layers == 1) &&
         is_beyond(is_small ? kTf32ProjectionOfSmall : kTf32ProjectionOfOne, columns, rows);
}

// Padded sequences in inference, which alone were looked at so: of many rows always; and in small layers
// whose columns or H are no multiple of four, of so many results of a row: of 2,200 such layers of any size
// four were not in TF32, of 90 results at most. `vectors`: columns and H are multiples of four.
constexpr Tf32Projection kTf32ProjectionOfManyRows{7, 4000};
constexpr Tf32Projection kTf32ProjectionWithoutVectors{199, 16};
constexpr int64_t kTf32ResultsWithoutVectors = 96;
constexpr bool has_tf32_projection_in_inference(Cell cell, int layers, int64_t hidden, int64_t columns,
                                                int64_t rows, bool vectors) {
  const bool is_small = is_small_layer(cell, hidden);
  return vectors ? (is_small || layers == 1) && is_beyond(kTf32ProjectionOfManyRows, columns, rows)
                 : is_small && is_beyond(kTf32ProjectionWithoutVectors, columns, rows) &&
                       gates_of(cell) * hidden >= kTf32ResultsWithoutVectors;
}

// Beside a state in TF32, of inputs whose columns alone are no multiple of four.
constexpr Tf32Projection kTf32ProjectionBesideState{199, 48};

// Of fewer results it is in TF32 or not, by no rule that was found: ours would be slower, or far less
// accurate. From so many multiply-adds of all steps on, that shows. With vectors it is in TF32 on both sides,
// and cuDNN's takes less time where it is large: T=47 B=180 I=1416 H=20 40 us, ours 44.
constexpr double kProductsEitherWay = 4e6;
constexpr int64_t kNarrowProductColumns = 1000;
constexpr double kNarrowProducts = 2e8;
// Of a GRU of one direction, of a few more results and of fewer columns: T=109 B=143 I=130 H=43 76 us,
// ours 80.
constexpr int64_t kResultsOfFewerColumns = 132;
constexpr int64_t kFewerColumns = 100;
inline bool has_narrow_projection(const RnnProblem& problem) {
  const Sequence& sequence = problem.sequence;
  const int64_t results = problem.gates() * problem.hidden;
  const double products = static_cast<double>(sequence.rows() * sequence.features) *
                          static_cast<double>(results * problem.directions);
  if (!problem.tf32_allowed) {
    return false;
  }
  if (results >= kTf32ResultsWithoutVectors) {
    return problem.cell == Cell::Gru && problem.directions == 1 && !problem.has_vectors() &&
           results <= kResultsOfFewerColumns && sequence.features >= kFewerColumns &&
           sequence.features <= kTf32ProjectionWithoutVectors.beyond_columns && products >= kNarrowProducts;
  }
  return problem.has_vectors()
             ? sequence.features >= kNarrowProductColumns && products >= kNarrowProducts
             : is_beyond(kTf32ProjectionWithoutVectors, sequence.features, sequence.rows()) &&
                   products >= kProductsEitherWay;
}

// Small layers that cuDNN keeps on the chip too: ours runs for so many rows, both directions counted, in
// sequences of up to kLongSteps steps and in longer ones; 0: never. Each up to a hidden size; there are no
// limits beyond the last.
constexpr int64_t kLongSteps = 64;
struct KeptOnChip {
  int64_t hidden, rows, long_rows;
};
constexpr KeptOnChip kLstmFp32[] = {{56, 0, 0}, {64, 32, 8}, {84, 0, 0}, {96, 32, 0}, {112, 128, 0}};
constexpr KeptOnChip kLstmFp16[] = {{28, 0, 0}, {32, 64, 64}, {56, 0, 0},   {64, 32, 8},
                                    {84, 0, 0}, {96, 32, 0},  {112, 128, 0}};
constexpr KeptOnChip kRnnFp32[] = {{92, 0, 0},    {112, 32, 0},  {128, 32, 32}, {144, 0, 0},
                                   {176, 16, 16}, {192, 32, 32}, {218, 48, 48}, {226, 84, 84}};
constexpr KeptOnChip kRnnFp16[] = {{28, 0, 0},   {32, 64, 64},  {56, 0, 0},  {64, 64, 8}, {92, 0, 0},
                                   {112, 64, 0}, {128, 64, 32}, {144, 8, 0}, {176, 8, 0}, {192, 16, 16}};
// fp16 where rows and hidden size are multiples of eight: cuDNN takes other kernels, which are slower up to
// so many rows, of one direction and of both of two; 0: always as fast. 1,700 random layers of 5 to 120
// steps.
constexpr int64_t kAnyRows = int64_t{1} << 30;
struct KeptOfEight {
  int64_t hidden, rows, rows_of_two;
};
constexpr KeptOfEight kLstmFp16OfEight[] = {{24, 0, kAnyRows},   {32, 800, 1040},      {64, 264, 740},
                                            {100, 264, 1040},    {104, 700, kAnyRows}, {128, 264, kAnyRows},
                                            {136, 450, kAnyRows}};
constexpr KeptOfEight kRnnFp16OfEight[] = {
    {16, 1250, kAnyRows}, {24, 800, kAnyRows}, {32, kAnyRows, kAnyRows}, {40, 500, kAnyRows},
    {64, 800, kAnyRows},  {72, 300, 2300},     {80, 450, 2300},          {100, 264, 2300},
    {104, 800, 2300},     {112, 264, 2300},    {120, 350, 2300},         {128, 160, 2300},
    {256, 128, 128}};

template <int kCount>
constexpr bool is_kept_on_chip(const KeptOnChip (&table)[kCount], int64_t hidden, int64_t rows,
                               int64_t steps) {
  for (const KeptOnChip& entry : table) {
    if (hidden <= entry.hidden) {
      return rows > (steps > kLongSteps ? entry.long_rows : entry.rows);
    }
  }
  return false;
}

template <int kCount>
constexpr bool is_kept_of_eight(const KeptOfEight (&table)[kCount], const RnnProblem& problem) {
  for (const KeptOfEight& entry : table) {
    if (problem.hidden <= entry.hidden) {
      const int64_t most = problem.directions == 2 ? entry.rows_of_two : entry.rows;
      return problem.sequence.batch * problem.directions > most;
    }
  }
  return false;
}

constexpr LayersInRanges kKeptOnChip[] = {
    // cells, dtypes, directions, layers, steps, hidden, batch, rows, weights, products, rows of a step
    // Long sequences of few rows just above H = 64.
    {kGru, kFp32 | kFp16, kAny, kAny, at_least(33), {65, 96}, kAny, kAny, kAny, kAny, at_most(16)},
    // T=38 B=30 H=86, two layers: 75 us, ours 81.
    without_vectors({kLstm, kFp32, kOne, kAny, at_least(5), {85, 96}}),
};

// Two directions of fewer rows take upstream twice as long, ours not.
constexpr double kRowsOfTwoDirections = 65;

// Packed sequences of several lengths without gradients: few steps with large products.
constexpr LayersInRanges kKeptPacked[] = {
    {kLstm, kAnyDtype, kAny, kAny, at_most(8), kAny, kAny, kAny, kAny, at_least(110)},
    {kLstm, kBf16, kAny, kAny, at_most(12), kAny, kAny, kAny, kAny, at_least(300)},
    {kGru, kBf16, kAny, kAny, at_most(4), kAny, kAny, kAny, kAny, at_least(500)},
    {kGru, kBf16, kAny, kAny, at_most(16), kAny, kAny, kAny, kAny, at_least(600)},
    // T=6 B=444 I=1280 H=512: 47 us, ours 50.
    {kRnn, kFp16, kAny, kAny, at_most(6), kAny, kAny, kAny, kAny, at_least(400)},
    // T=4 B=325 I=22 H=268, one row of four steps and the others of one, two layers: 71 us, ours 95.
    {kGru, kBf16, kAny, kSeveral, at_most(4), kAny, kAny, kAny, kAny, at_least(50)},
    // Stacks: cuDNN runs layers beside one another.
    {kLstm | kRnn, kFp32 | kFp16, kAny, kSeveral, {4, 4}},
    {kLstm, kBf16, kAny, at_least(3), {3, 4}},
    // T=5 B=8 I = H = 640 with lengths from two steps on, two layers: 50 us, ours 56.
    {kLstm, kFp16, kAny, kSeveral, {3, 6}, at_least(257)},
    // T=5 B=32 I = H = 300 with all lengths but one of a step, three layers of a GRU: 64 us, ours 76. Of 25
    // such stacks of one direction and four or five steps the median was 1.00, and four were below 0.95.
    {kAnyCell, kFp16, kOne, kSeveral, {4, 5}},
    // T=7 B=32 I = H = 640 with lengths from four steps on, four layers: 134 us, ours 163.
    {kLstm, kFp16, kOne, at_least(3), {6, 8}, at_least(512)},
    {kAnyCell, kFp32, kOne, kSeveral, at_most(8), kAny, kAny, kAny, kAny, at_least(18)},
    {kAnyCell, kFp32, kOne, kSeveral, at_most(6), kAny, kAny, kAny, at_least(100), kAny, kAny, at_least(3)},
    {kRnn, kFp32, kOne, kAny, at_most(6), at_least(256), at_least(64)},
    {kGru | kLstm, kFp32, kAny, kAny, at_most(6), kAny, kAny, kAny, kAny, at_least(13)},
    {kGru, k16Bits, kAny, kAny, at_most(8), kAny, kAny, at_least(1000), kAny, kAny, kAny, at_least(5)},
    // T=9 B=48 I = H = 300 with all lengths but one of a step, five layers: 112 us, ours 127.
    {kRnn, kFp16, kOne, at_least(5), at_most(10), kAny, kAny, kAny, kAny, kAny, kAny, at_least(5)},
    // T=16 B=32 I=40 H=640 with most lengths of two steps, four layers: 208 us, ours 221.
    {kLstm, kFp16, kOne, at_least(4), at_most(16), at_least(512), kAny, kAny, kAny, kAny, kAny, at_least(5)},
    {kLstm, kFp32, kOne, at_least(5), at_most(12), kAny, kAny, kAny, kAny, kAny, kAny, at_least(5)},
    // T=5 B=48 I=80 H=300 with lengths from two steps on, five layers: 104 us, ours 132.
    {kRnn, kFp32, kOne, at_least(5), {4, 6}, at_least(256)},
    // T=18 B=200 I=512 H=384: 124 us, ours 135.
    {kLstm, k16Bits, kOne, kOne, {13, 20}, {290, 640}, at_least(170)},
    // Of more steps a piece more costs less than what upstream's steps take.
    {kAnyCell, kFp32, kAny, kAny, at_most(16), kAny, kAny, kAny, kAny, at_least(37), kAny, at_least(3.4)},
};

// fp16: one layer and direction of whole tiles, for which PyTorch asks cuDNN for its persistent kernel of
// large layers. An LSTM's 16 rows are one tile of it.
constexpr int64_t kStaticTile = 128;
constexpr LayersInRanges kStatic[] = {
    {kLstm, kFp16, kOne, kOne, kAny, {896, 1024}, {16, 16}},
};

inline bool is_kept_packed(const RnnProblem& problem) {
  return problem.sequence.is_packed() && !problem.differentiated && is_in(kKeptPacked, problem);
}

inline bool is_static(const RnnProblem& problem) {
  return is_in(kStatic, problem) && problem.hidden % kStaticTile == 0 &&
         problem.sequence.features % kStaticTile == 0;
}

// Whether upstream was seen to be as fast because it has a persistent kernel of small layers too.
inline bool is_kept_on_chip(const RnnProblem& problem) {
  if (is_in(kKeptOnChip, problem)) {
    return true;
  }
  if (problem.cell == Cell::Gru || problem.dtype == Dtype::BFloat16) {
    return false;
  }
  const bool lstm = problem.cell == Cell::Lstm;
  if (problem.dtype == Dtype::Half && problem.sequence.batch % 8 == 0 && problem.hidden % 8 == 0) {
    return lstm ? is_kept_of_eight(kLstmFp16OfEight, problem) : is_kept_of_eight(kRnnFp16OfEight, problem);
  }
  if (problem.directions == 2 && problem.sequence.batch < kRowsOfTwoDirections) {
    return false;
  }
  const int64_t hidden = problem.hidden;
  const int64_t rows = problem.sequence.batch * problem.directions;
  const int64_t steps = problem.sequence.steps;
  if (problem.dtype == Dtype::Float) {
    return lstm ? is_kept_on_chip(kLstmFp32, hidden, rows, steps)
                : is_kept_on_chip(kRnnFp32, hidden, rows, steps);
  }
  return lstm ? is_kept_on_chip(kLstmFp16, hidden, rows, steps)
              : is_kept_on_chip(kRnnFp16, hidden, rows, steps);
}

// Whether upstream's first step is so long that all of ours is shorter: fp32, where it takes 42 us, but not
// of a packed sequence.
constexpr bool has_long_first_step(const RnnProblem& problem) {
  if (problem.dtype != Dtype::Float || problem.cell == Cell::Gru || problem.given_packed) {
    return false;
  }
  const int64_t from = problem.cell == Cell::Lstm ? 112 : 192;
  return problem.hidden > from && problem.hidden <= cudnn_tf32(problem.cell).beyond_hidden;
}

}  // namespace aten_ext::cuda
