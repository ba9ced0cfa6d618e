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

// A stage: a tile of the weight, and of mat1.
constexpr int stage_bytes(int rows, int groups) {
  return (groups * kColumnsOfGroup + rows) * depth_bytes(groups);
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

constexpr int max_smem_bytes(bool alone) {
  return alone ? kMaxSmemBytesAlone : kMaxSmemBytes;
}

constexpr int slots(int rows, int groups, bool alone) {
  return std::min((max_smem_bytes(alone) - exchange_bytes(rows, groups)) / stage_bytes(rows, groups),
                  kMaxSlots);
}

// The stages; partial sums take their place.
constexpr int ring_bytes(int rows, int groups, bool alone) {
  return std::max(slots(rows, groups, alone) * stage_bytes(rows, groups),
                  kWarps / groups * rows * partial_stride(groups) * 4);
}

// Dynamic shared memory of a block.
constexpr int smem_bytes(int rows, int groups, bool alone) {
  return ring_bytes(rows, groups, alone) + exchange_bytes(rows, groups);
}

}  // namespace aten_ext::cuda::few_rows
