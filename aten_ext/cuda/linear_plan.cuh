// Policy of the linear layers' kernel (linear.cu), host side: how a layer is cut into tiles and blocks.
//
// Napkin maths for an H200, not measured yet. scripts/tune_linear.cu times every plan and says where this
// chooses a slower one.
#pragma once

#include <algorithm>

namespace aten_ext::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
// Two blocks share a multiprocessor: one computes while the other waits. So the compiler keeps to 128
// registers, and a block to half of the 228 KB of shared memory, of which each block costs 1 KB more.
constexpr int kBlocksPerSM = 2;
constexpr int kMostSharedBytes = 113 * 1024;
constexpr int kMostStages = 8;
// Each stage has 256 bytes of each row of the weight: 2 cache lines, so that DRAM is read in long pieces.
template <typename T>
constexpr int kDepth = 256 / sizeof(T);

constexpr int kWideColumns = 64;
// For 16-bit dtypes and at most 16 rows: twice the blocks without splitting K. With more rows mat1 would be
// read more often than the weight.
constexpr int kNarrowColumns = 32;
constexpr int kMostNarrowRows = 16;

// Blocks of a cluster: up to 8 on every GPU that has clusters.
constexpr int kMostSplits = 8;

struct Plan {
  int rows;     // of mat1 in a tile: M, rounded up to what there is a kernel for
  int columns;  // of the result in a tile
  int splits;   // blocks that share a tile's K
};

// 4 is for fp32 alone: a tensor core takes 8.
constexpr int round_up_rows(int m, bool is_float) {
  return m <= 4 && is_float ? 4 : m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}

// Blocks that are on the GPU at once. A cluster has to fit into one of its parts (GPCs), of 10 to 18
// multiprocessors on an H200: with one block on each of 132, 30 clusters of 4 were resident, and 15 of 8.
// With two, that leaves next to none unused with up to 4, and some 24 of 264 with 8.
constexpr int resident_blocks(int splits, int multiprocessors) {
  return kBlocksPerSM * multiprocessors - (splits > 4 ? 3 * splits : 0);
}

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

// Estimated time of a plan in us: whichever is largest of the weight's way from memory, the way of both
// operands into the busiest multiprocessor, and its multiply-adds; and the two barriers of a cluster.
constexpr float estimate(int m, int n, int k, bool is_float, int multiprocessors, Plan plan) {
  constexpr float kBytesPerMicrosecond = 4.2e6f;
  constexpr float kBytesPerMicrosecondOfOne = 60e3f;      // half of 64 bytes a clock
  constexpr float kFmasPerMicrosecondOfOne = 128 * 1755;  // the peak
  constexpr float kOfThePeak = 0.7f;                      // with two blocks on a multiprocessor
  constexpr float kOfThePeakAlone = 0.5f;                 // with one: nobody computes while it waits
  constexpr float kClusterMicroseconds = 0.6f;
  const int size = is_float ? 4 : 2;
  const int depth = 256 / size;
  const int tiles = divide_up(n, plan.columns);
  const int blocks = divide_up(tiles * plan.splits, multiprocessors);  // of the busiest multiprocessor
  const int stages = divide_up(divide_up(k, depth), plan.splits) * blocks;
  const float memory = static_cast<float>(n) * static_cast<float>(k) * static_cast<float>(size);
  const float arriving = static_cast<float>(stages) * 256.0f * static_cast<float>(plan.columns + m);
  const float fmas = static_cast<float>(stages) * static_cast<float>(depth * plan.columns * plan.rows);
  const float time = std::max(memory / kBytesPerMicrosecond, arriving / kBytesPerMicrosecondOfOne);
  const float rate = kFmasPerMicrosecondOfOne * (blocks > 1 ? kOfThePeak : kOfThePeakAlone);
  return std::max(time, is_float ? fmas / rate : 0.0f) + (plan.splits > 1 ? kClusterMicroseconds : 0.0f);
}

// The plan with the least estimate; of equals the one with more blocks, as long as all are resident at once.
constexpr Plan choose_plan(int m, int n, int k, bool is_float, int multiprocessors) {
  const int rows = round_up_rows(m, is_float);
  const int stages = divide_up(k, 256 / (is_float ? 4 : 2));
  Plan best{rows, kWideColumns, 1};
  float least = estimate(m, n, k, is_float, multiprocessors, best);
  for (const int columns : {kWideColumns, kNarrowColumns}) {
    if (columns == kNarrowColumns && (is_float || rows > kMostNarrowRows)) {
      continue;
    }
    for (int splits = 1; splits <= std::min(kMostSplits, stages); ++splits) {
      const Plan plan{rows, columns, splits};
      const float time = estimate(m, n, k, is_float, multiprocessors, plan);
      const bool resident = divide_up(n, columns) * splits <= resident_blocks(splits, multiprocessors);
      if (time < 0.999f * least || (time <= least && resident)) {
        best = plan;
        least = std::min(least, time);
      }
    }
  }
  return best;
}

// The cases that the policy was made for, on 132 multiprocessors.
constexpr bool is_plan(Plan plan, int rows, int columns, int splits) {
  return plan.rows == rows && plan.columns == columns && plan.splits == splits;
}
static_assert(is_plan(choose_plan(1, 4096, 4096, false, 132), 8, 32, 1));
static_assert(is_plan(choose_plan(16, 3072, 768, false, 132), 16, 32, 1));
static_assert(is_plan(choose_plan(64, 4096, 4096, false, 132), 64, 64, 4));
static_assert(is_plan(choose_plan(8, 4096, 4096, true, 132), 8, 64, 4));
static_assert(is_plan(choose_plan(64, 4096, 4096, true, 132), 64, 64, 4));

}  // namespace
}  // namespace aten_ext::cuda
