// Sizes that the kernel for few rows (few_rows.cu) and its plans (few_rows_plan.h) share. Standard library
// only.
#pragma once

#include <algorithm>

#include "core/math.h"

namespace aten_ext::cuda::few_rows {

constexpr int kMaxRows = 64;  // of mat1

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
// Two blocks share a multiprocessor: one computes while the other waits. So a thread has 128 registers, and a
// block half of the 228 KB of shared memory, of which each block costs 1 KB more.
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kMaxSmemBytes = 113 * 1024;
constexpr int kMaxSmemBytesAlone = 227 * 1024;
// Stages under way and in work.
constexpr int kMaxSlots = 4;
// Steps of 64 bytes that a warp takes of each of its columns at once: a whole cache line of 128 bytes.
constexpr int kStageSteps = 2;
constexpr int kStepBytes = 64;
constexpr int kColumnsOfGroup = 16;
constexpr int kMaxGroups = 4;
// Blocks of a cluster: up to 8 on every GPU that has clusters.
constexpr int kMaxSplits = 8;

// Bytes of a column, or of a row of mat1, in a stage.
constexpr int depth_bytes(int groups) {
  return kWarps / groups * kStageSteps * kStepBytes;
}

// What a tile is of. Where rows of both operands are not whole vectors of 16 bytes, a row of a tile is the
// vectors that cover it, one more than it has (covered_rows.cuh).
struct Operands {
  bool is_float;    // otherwise 16 bits
  bool transposed;  // the weight is [N, K] in memory
  bool vectors;
};

// A tile of the weight in a stage (weight.cuh). Where rows are no whole vectors, they are further apart than
// they are long (covered_weight.cuh).
constexpr int weight_stage_bytes(int groups, Operands of) {
  const int size = of.is_float ? 4 : 2;
  const int columns = groups * kColumnsOfGroup;
  const int depth = depth_bytes(groups) / size;
  const int rows = of.transposed ? columns : depth;
  const int row = (of.transposed ? depth : columns) * size;
  const int more = of.transposed ? rows * 64 : of.is_float ? rows * 16 : rows * 16 + rows / 8 * 32;
  return rows * row + (of.vectors ? 0 : more);
}

// Bytes that a row of mat1 has more than a stage's. With four vectors more, 64 rows would leave no room for
// two blocks.
constexpr int mat1_padding(int rows, bool vectors) {
  return vectors ? 0 : rows < 64 ? 64 : 16;
}

// A stage: a tile of the weight, and of mat1.
constexpr int stage_bytes(int rows, int groups, Operands of) {
  return weight_stage_bytes(groups, of) + rows * (depth_bytes(groups) + mat1_padding(rows, of.vectors));
}

// Elements of a tile, as its blocks exchange them: a block's part is rounded up to 32.
constexpr int padded_elements(int rows, int groups) {
  return rows * groups * kColumnsOfGroup + kMaxSplits * 31;
}

// The sums that a cluster's blocks send to one another, and an mbarrier.
constexpr int exchange_bytes(int rows, int groups) {
  return padded_elements(rows, groups) * 4 + 8;
}

// A row of partial sums in shared memory, in floats.
constexpr int partial_stride(int groups) {
  return groups * kColumnsOfGroup + 4;
}

// There are two stages at least. Of 64 rows, [K, N] in 16 bits that is not of whole vectors, they leave no
// room for a second block.
constexpr int max_smem_bytes(int rows, int groups, bool alone, Operands of) {
  const int two_stages = 2 * stage_bytes(rows, groups, of) + exchange_bytes(rows, groups);
  return alone || two_stages > kMaxSmemBytes ? kMaxSmemBytesAlone : kMaxSmemBytes;
}

constexpr int slots(int rows, int groups, bool alone, Operands of) {
  return std::min((max_smem_bytes(rows, groups, alone, of) - exchange_bytes(rows, groups)) /
                      stage_bytes(rows, groups, of),
                  kMaxSlots);
}

// The stages; partial sums take their place.
constexpr int ring_bytes(int rows, int groups, bool alone, Operands of) {
  return std::max(slots(rows, groups, alone, of) * stage_bytes(rows, groups, of),
                  kWarps / groups * rows * partial_stride(groups) * 4);
}

// Dynamic shared memory of a block.
constexpr int smem_bytes(int rows, int groups, bool alone, Operands of) {
  return ring_bytes(rows, groups, alone, of) + exchange_bytes(rows, groups);
}

}  // namespace aten_ext::cuda::few_rows
