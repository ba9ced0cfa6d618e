// The policy for one step and for sequences of a few: when a launch for each, with its projection, is best.
// Measured on an H200; the figures behind each constant are in docs/kernels/rnn.md.
#include "ops/rnn/plan.h"
#include "ops/rnn/sizes.h"

namespace aten_ext::cuda {
namespace {

// One step (Route::Step, gru_cell). Weights: H * (I + H) of a GRU, without the 3 of the gates; of another
// cell by its gates' share of these (weights_of()). Products: rows of the batch times that.
//
// fp32 without TF32: rows share the reads of weights, the sums are each row's own. Several steps:
constexpr int64_t kFmaStepRows = 4;
constexpr int64_t kFmaStepRowsOfFewWeights = 8;
constexpr double kFewWeights = 0.6e6;
// One step takes more rows: products (of both directions) by Cell, in eight rows and in more, and where there
// are no vectors of four columns. A cell's upstream is slower than a layer's.
struct FmaStepProducts {
  double eight_rows, more_rows, without_vectors;
};
constexpr FmaStepProducts kFmaStepProducts[] = {
    {3e6, 1.1e6, 0.5e6}, {3e6, 1.1e6, 0.5e6}, {5e6, 2.5e6, 1.5e6}, {6e6, 1.8e6, 1.5e6}};
constexpr FmaStepProducts kFmaCellProducts[] = {
    {6e6, 1.8e6, 0.5e6}, {6e6, 1.8e6, 0.5e6}, {6e6, 3.5e6, 1.5e6}, {6e6, 2e6, 1.5e6}};
// Of a cell of an RNN without vectors and more rows than one: 2 rows of I = H = 1150 take upstream 19 us,
// ours 25.
constexpr double kRnnCellWeightsWithoutVectors = 0.8e6;
constexpr int64_t kEightRows = 8;
constexpr int64_t kMaxFmaStepRows = 1024;
// Of more columns few units have too long a sum each: 60,960 columns of four units take 36 us, upstream 28.
constexpr int64_t kMaxFmaStepColumns = 16384;
// Products of which TF32, where cuDNN has it, is no shorter.
constexpr double kFmaStepProductsBesideTf32 = 1.4e6;
// 16 bits, on tensor cores.
constexpr double kStepProducts = 34e6;
constexpr double kStepProductsOfFewWeights = 68e6;
// A cell's upstream is faster than a layer's. Limits by Cell, without vectors of eight columns and with them:
// products; units (rows times hidden size); of more rows than some, weights; of more rows than one, columns
// for each unit; of more rows than 16, columns in fp16. Of 13,778 random cells on an H100, and 1,727 of few
// units on an H200.
struct CellLimits {
  double products;
  int64_t units;
  double weights;
  int64_t any_weights_rows;
  int64_t columns_of_unit;
  int64_t half_columns;
};
constexpr int64_t kManyCellRows = 16;
constexpr int64_t kAnySize = int64_t{1} << 30;
constexpr CellLimits kRnnCellLimits[2] = {{10e6, 150'000, 1.3e6, 1, kAnySize, kAnySize},
                                          {34e6, 200'000, 3e6, 1, kAnySize, kAnySize}};
constexpr CellLimits kCellLimits[][2] = {
    {kRnnCellLimits[0], kRnnCellLimits[1]},
    {kRnnCellLimits[0], kRnnCellLimits[1]},
    {{9e6, 33'000, 1.8e6, 1, 8, kAnySize}, {34e6, 66'000, 0, kAnySize, kAnySize, kAnySize}},
    {{10e6, 100'000, 1.2e6, 1, 32, 1500}, {34e6, 100'000, 1.1e6, 16, kAnySize, kAnySize}}};
// In 16 bits, with vectors, of a GRU and an LSTM of up to kRowsOfManyLoads rows, a cell is short if all of
// its blocks run at once: of 624 random ones of up to so many columns these took upstream 1.1 to 2.7 times as
// long, the others 0.66 to 1.05.
constexpr int64_t kColumnsOfOneWave = 4096;
// In fp32, of two to four rows: weights from which two products and the gates by themselves are shorter, with
// vectors, and without them of two rows and of more. Four rows of a GRU of I = H = 1600 take upstream 32 us,
// ours 41, those 30. By Cell; of an RNN without vectors kRnnCellWeightsWithoutVectors says it.
constexpr double kAnyWeights = 1e18;
struct FmaCellWeights {
  double vectors, two_rows, more_rows;
};
constexpr FmaCellWeights kFmaCellWeights[] = {{1.4e6, kAnyWeights, kAnyWeights},
                                              {1.4e6, kAnyWeights, kAnyWeights},
                                              {5.5e6, 4.9e6, kAnyWeights},
                                              {4.75e6, 3.9e6, 4.75e6}};
// Cells of so many columns and more, and so many for each unit, have a long sum for each of few threads. Of
// more rows than these, in 16 bits or of a GRU in fp32 without vectors, upstream was seen to be as fast or
// faster (an RNN of 324 rows, I = 2396, H = 16 in bf16: 0.88).
constexpr int64_t kLongSum = 1500;
constexpr int64_t kLongSumOfUnit = 100;
constexpr int64_t kRowsOfLongSums = 64;
constexpr int64_t kFp32RowsOfLongSums = 256;
// LSTM and RNN: of up to 64 rows; of several steps in fp16; in fp32 of several steps of few rows.
constexpr double kStepProductsOfFewRows = 50e6;
constexpr int64_t kFewRows = 64;
constexpr double kFp16StepWeights = 1.5e6;
constexpr double kFp16StepsProducts = 23e6;
constexpr double kRnnFp16StepsProductsOfManyRows = 8e6;
constexpr double kLstmFp16StepsWeights = 2.8e6;
constexpr double kRnnFp16StepsWeightsOfStack = 0.5e6;
constexpr double kOtherFmaStepsProducts = 3e6;
constexpr double kOtherFmaStepsWeights = 1e6;
constexpr double kProductsWithoutVectors[2] = {4e6, 12e6};  // several steps, one
constexpr double kFmaStepsProductsWithoutVectors = 1e6;
constexpr double kGruProductsWithoutVectors = 20e6;
// TF32, where cuDNN was seen to use it too.
constexpr int64_t kTf32StepMultiple = 8;  // of batch, input and hidden: no others were measured
constexpr int64_t kTf32StepRows = 24;
constexpr int64_t kMaxTf32StepRows = 256;
constexpr int64_t kTf32StepHidden = 128;  // at 64 cuDNN was half as far off: part of it is fp32
constexpr double kTf32StepProducts = 34e6;
// Of an LSTM of more rows than 16; and several steps of an LSTM or RNN, both directions.
constexpr double kTf32LstmStepProducts = 20e6;
constexpr double kTf32StepsProducts = 14e6;
constexpr double kTf32StepWeights = 1e6;
// Of more weights.
constexpr int64_t kMaxTf32StepRowsOfManyWeights = 32;
constexpr double kMaxTf32StepWeights = 2.2e6;
// As few rows as these, where the hidden size is not between.
constexpr int64_t kFewTf32StepRows = 16;
constexpr int64_t kFewTf32StepRowsHidden[2] = {128, 512};
// Steps up to which a launch for each, with its projection, is shorter than a GEMM and a recurrence.
constexpr int64_t kMaxStepLaunches = 4;
constexpr double kStepsWeights = 4.3e6;      // 16 bits
constexpr double kFmaStepsProducts = 2.2e6;  // fp32
// Of a GRU in fp32 that fits a block, in how many steps of how many rows one launch after a GEMM is shorter.
constexpr int64_t kBlockSteps[2] = {3, 2};
constexpr int64_t kBlockRows[2] = {2, 5};
// Columns of W_ih and W_hh for each hidden unit: of more, few warps have long rows, and a GEMM for all steps
// spreads them over the GPU. T=3 B=212 I=2048 H=8 in fp16 takes upstream 12 us and steps 30; T=3 B=5 I=864
// H=50 in fp32 17 and 18.
constexpr int64_t kStepsColumnsOfUnit = 16;
// Of an LSTM or RNN in 16 bits whose rows are no vectors: T=3 B=8 I=1031 H=80 in fp16 takes 17 us, steps 23.
constexpr int64_t kStepsColumnsOfUnitWithoutVectors = 8;
// Of the layers that have both, those of which a GEMM and one launch are shorter than a launch for each step.
constexpr LayersInRanges kShorterInOneLaunch[] = {
    // cells, dtypes, directions, layers, steps, hidden
    {kGru | kLstm, k16Bits, kAny, kAny, {3, 3}, at_most(64)},
    {kAnyCell, k16Bits, kAny, kAny, {4, 4}, at_most(400)},
    {kAnyCell, kFp32, kAny, kAny, {4, 4}, at_most(256)},
};

// Of a step: both matrices' weights, a third of a GRU's.
double weights_of(Cell cell, int64_t input, int64_t hidden) {
  return static_cast<double>(hidden) * static_cast<double>(input + hidden) * gates_of(cell) /
         gates_of(Cell::Gru);
}

// Of one step in 16 bits of an LSTM or RNN. In fp16 a large layer of cuDNN's takes as long.
double most_products(Dtype dtype, int64_t batch, double weights) {
  const bool large = dtype == Dtype::Half && weights > kFp16StepWeights;
  return batch <= kFewRows && !large ? kStepProductsOfFewRows : kStepProducts;
}

bool is_small_fma_step(int64_t batch, double weights) {
  return batch <= kFmaStepRows || (batch <= kFmaStepRowsOfFewWeights && weights <= kFewWeights);
}

bool is_short(const FmaStepProducts& most, int64_t batch, int64_t input, int64_t hidden, double products) {
  const double most_products = !are_vectors(false, input, hidden) ? most.without_vectors
                               : batch <= kEightRows              ? most.eight_rows
                                                                  : most.more_rows;
  return input + hidden <= kMaxFmaStepColumns &&
         (batch <= kFmaStepRows || (batch <= kMaxFmaStepRows && products <= most_products));
}

// Whether one step of a layer in fp32 is short by multiply-adds. Products: of both directions. With gradients
// more rows were measured from Python alone.
bool is_fma_step(const Sizes& sizes, double products) {
  if (sizes.problem.differentiated && sizes.problem.captured) {
    return is_small_fma_step(sizes.batch, products / static_cast<double>(sizes.batch));
  }
  return is_short(kFmaStepProducts[static_cast<int>(sizes.problem.cell)], sizes.batch,
                  sizes.problem.sequence.features, sizes.hidden, products);
}

// Whether one step in fp32 gains in TF32 by being one launch, and cuDNN takes TF32 for it.
bool is_tf32_step(const Sizes& sizes, double weights) {
  const bool many_weights = weights > kTf32StepWeights;
  const bool few_rows =
      sizes.batch == kFewTf32StepRows && !many_weights &&
      (sizes.hidden <= kFewTf32StepRowsHidden[0] || sizes.hidden >= kFewTf32StepRowsHidden[1]);
  const bool whole = sizes.batch % kTf32StepMultiple == 0 && sizes.hidden % kTf32StepMultiple == 0 &&
                     sizes.input % kTf32StepMultiple == 0;
  // Up to there cuDNN's product with the state is in fp32: ours is to be a small part of the error.
  const bool projected =
      sizes.hidden > cudnn_tf32(Cell::Gru).beyond_hidden || sizes.problem.sequence.features >= sizes.hidden;
  if (!sizes.tf32_allowed || !sizes.problem.has_vectors() || !whole || !projected ||
      sizes.hidden < kTf32StepHidden || !(few_rows || sizes.batch >= kTf32StepRows)) {
    return false;
  }
  return many_weights ? sizes.batch <= kMaxTf32StepRowsOfManyWeights && weights <= kMaxTf32StepWeights
                      : sizes.batch <= kMaxTf32StepRows &&
                            static_cast<double>(sizes.batch) * weights <= kTf32StepProducts;
}

bool is_block_of_rows(const Sizes& sizes) {
  for (int i = 0; i < 2; ++i) {
    if (sizes.hidden <= kBlockHidden && sizes.steps >= kBlockSteps[i] && sizes.batch >= kBlockRows[i]) {
      return true;
    }
  }
  return false;
}

// Several steps in 16 bits of an LSTM or RNN. cuDNN runs the layers of a stack beside one another.
bool is_small_steps(const Sizes& sizes, double weights, double products) {
  if (sizes.problem.dtype != Dtype::Half) {
    return products <= kStepProducts && weights <= kStepsWeights;
  }
  if (sizes.problem.cell == Cell::Lstm) {
    return products <= kFp16StepsProducts && weights <= kLstmFp16StepsWeights;
  }
  return products <= (sizes.batch <= kFewRows ? kFp16StepsProducts : kRnnFp16StepsProductsOfManyRows) &&
         (sizes.problem.layers == 1 || weights <= kRnnFp16StepsWeightsOfStack);
}

// In TF32: one step of an LSTM or RNN, or several.
bool is_tf32_step_of_others(const Sizes& sizes, double products) {
  if (sizes.steps > 1) {
    return products <= kTf32StepsProducts && sizes.batch <= kMaxTf32StepRowsOfManyWeights;
  }
  return products <= (sizes.batch <= kFewTf32StepRows    ? kStepProductsOfFewRows
                      : sizes.problem.cell == Cell::Lstm ? kTf32LstmStepProducts
                                                         : kTf32StepProducts);
}

// Whether a launch for each step is best: LSTM and RNN, whose upstream is another. Both directions count.
bool plan_steps_of_others(const Sizes& sizes, double weights_of_direction, bool& tf32) {
  const bool one = sizes.steps == 1;
  const double weights = weights_of_direction * sizes.directions;
  const double products = static_cast<double>(sizes.batch) * weights;
  const bool vectors = sizes.problem.has_vectors();
  if (sizes.sixteen_bits) {
    return (vectors || sizes.batch == 1 || products <= kProductsWithoutVectors[one]) &&
           (one ? products <= most_products(sizes.problem.dtype, sizes.batch, weights)
                : is_small_steps(sizes, weights, products));
  }
  if (!one && sizes.batch <= kFmaStepRows) {
    return products <= (vectors ? kOtherFmaStepsProducts : kFmaStepsProductsWithoutVectors) &&
           weights <= kOtherFmaStepsWeights;
  }
  if (one && (sizes.batch <= kFmaStepRows || products <= kFmaStepProductsBesideTf32) &&
      is_fma_step(sizes, products)) {
    return true;
  }
  tf32 = vectors && is_tf32_recurrence(sizes) && is_tf32_step_of_others(sizes, products);
  return tf32 || (one && is_fma_step(sizes, products));
}

// Whether few units of a cell have long sums in many rows.
bool has_long_sums(Cell cell, Dtype dtype, int64_t batch, int64_t input, int64_t hidden) {
  const int64_t columns = input + hidden;
  if (columns < kLongSum || columns < kLongSumOfUnit * hidden) {
    return false;
  }
  return dtype == Dtype::Float
             ? cell == Cell::Gru && !are_vectors(false, input, hidden) && batch > kFp32RowsOfLongSums
             : batch > kRowsOfLongSums;
}

}  // namespace

bool plan_steps(const Sizes& sizes, bool& tf32) {
  const double weights = weights_of(sizes.problem.cell, sizes.input, sizes.hidden);
  const double products = static_cast<double>(sizes.batch) * weights;
  const bool one = sizes.steps == 1;
  tf32 = false;
  if (sizes.steps > kMaxStepLaunches) {
    return false;
  }
  const bool narrow = sizes.sixteen_bits && sizes.problem.cell != Cell::Gru && !sizes.problem.has_vectors();
  const int64_t columns_of_unit = narrow ? kStepsColumnsOfUnitWithoutVectors : kStepsColumnsOfUnit;
  if (!one && sizes.input + sizes.hidden > columns_of_unit * sizes.hidden * sizes.directions) {
    return false;
  }
  if (sizes.problem.cell != Cell::Gru) {
    return plan_steps_of_others(sizes, weights, tf32);
  }
  if (sizes.sixteen_bits) {
    const bool vectors = sizes.problem.has_vectors();
    if (!vectors && sizes.batch > 1 && products > kGruProductsWithoutVectors) {
      return false;
    }
    return one ? products <= (weights <= kFewWeights ? kStepProductsOfFewWeights : kStepProducts)
               : products * sizes.directions <= kStepProducts && weights <= kStepsWeights;
  }
  if (one && is_fma_step(sizes, products * sizes.directions)) {
    return true;
  }
  if (!one && is_small_fma_step(sizes.batch, weights)) {
    return products <= kFmaStepsProducts && !is_block_of_rows(sizes);
  }
  tf32 = true;
  return one && is_tf32_step(sizes, weights);
}

bool is_shorter_in_one_launch(const RnnProblem& problem) {
  return !problem.differentiated && is_in(kShorterInOneLaunch, problem);
}

bool is_small_cell(Cell cell, Dtype dtype, int64_t batch, int64_t input, int64_t hidden,
                   int64_t multiprocessors) {
  const double weights = weights_of(cell, input, hidden);
  if (has_long_sums(cell, dtype, batch, input, hidden)) {
    return false;
  }
  if (dtype == Dtype::Float) {
    const bool rnn = !has_several_gates(cell);
    const bool vectors = are_vectors(false, input, hidden);
    const FmaCellWeights& most = kFmaCellWeights[static_cast<int>(cell)];
    if (batch > 1 && batch <= kFmaStepRows &&
        weights > (vectors      ? most.vectors
                   : batch == 2 ? most.two_rows
                                : most.more_rows)) {
      return false;
    }
    return !(rnn && batch > 1 && !vectors && weights > kRnnCellWeightsWithoutVectors) &&
           is_short(kFmaCellProducts[static_cast<int>(cell)], batch, input, hidden,
                    static_cast<double>(batch) * weights);
  }
  const bool vectors = are_vectors(true, input, hidden);
  if (vectors && has_several_gates(cell) && batch > 1 && batch <= kRowsOfManyLoads &&
      input + hidden <= kColumnsOfOneWave) {
    return mma_blocks(batch, hidden, /*directions=*/1) <= kMmaBlocksPerSM * multiprocessors;
  }
  // Without vectors four rows of an LSTM of 1,104 units, 138 blocks, take upstream 9.0 us, ours 11.7; of 976
  // units 9.5 and 7.3.
  if (!vectors && cell == Cell::Lstm && batch > 1 && batch <= kManyCellRows &&
      mma_blocks(batch, hidden, /*directions=*/1) > multiprocessors) {
    return false;
  }
  const CellLimits& most = kCellLimits[static_cast<int>(cell)][vectors];
  return static_cast<double>(batch) * weights <= most.products && batch * hidden <= most.units &&
         (batch <= most.any_weights_rows || weights <= most.weights) &&
         (batch == 1 || input + hidden <= most.columns_of_unit * hidden) &&
         (dtype != Dtype::Half || batch <= kManyCellRows || input + hidden <= most.half_columns);
}

}  // namespace aten_ext::cuda
