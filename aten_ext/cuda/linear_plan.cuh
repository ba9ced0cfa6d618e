// Policy of the linear layers' kernel (linear.cu), host side: how a layer is cut into tiles and blocks.
//
// The numbers in estimate() were fitted to times of the plans of 12 shapes and 5 heights, fp32 and bf16, and
// of 4 shapes [K, N], on an H200 (scripts/tune_linear.cu): the plan of least estimate took 2 % longer than
// the fastest on average, and at most 15 % where upstream is not faster anyway (linear_rule.h). They are no
// physics of their own: only the order of the plans was fitted.
#pragma once

#include <algorithm>
#include <cstdint>

namespace aten_ext::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
// Two blocks share a multiprocessor: one computes while the other waits. So the compiler keeps to 128
// registers, and a block to half of the 228 KB of shared memory, of which each block costs 1 KB more. One
// block of 16 warps instead was slower at fewer than 64 rows (by 4 to 60 %), and at 64 rows of fp32 up to 5 %
// faster.
constexpr int kBlocksPerSM = 2;
constexpr int kMostSharedBytes = 113 * 1024;
constexpr int kMostSharedBytesAlone = 227 * 1024;
// Stages under way and in work: 3 times 16 KB of weight in each of two blocks, 96 KB a multiprocessor. Five
// more bytes in flight made it slower, not faster (4096 x 4096, bf16: 11.0 to 12.0 us with 6).
constexpr int kMostSlots = 4;
// Steps of 64 bytes that a warp takes of each of its columns at once: a whole cache line of 128 bytes.
constexpr int kStageSteps = 2;
constexpr int kColumnsOfGroup = 16;
constexpr int kMostGroups = 4;
// Blocks of a cluster: up to 8 on every GPU that has clusters.
constexpr int kMostSplits = 8;

struct Plan {
  int rows;        // of mat1 in a tile: M, rounded up to what there is a kernel for
  int groups;      // 1, 2 or 4 times 16 columns of the result in a tile; kWarps / groups warps share its k
  int splits;      // blocks that share a tile's K
  bool alone;      // a block has a multiprocessor to itself
  int prefetched;  // stages of a block whose weight is asked for before the launches before have ended
};

constexpr int divide_up(int a, int b) {
  return (a + b - 1) / b;
}

constexpr int round_up_rows(int m) {
  return m <= 8 ? 8 : m <= 16 ? 16 : m <= 32 ? 32 : 64;
}

// A tile of 64 rows and 16 columns has no room in shared memory.
constexpr bool is_tile(int rows, int groups) {
  return rows < 64 || groups > 1;
}

// fp32 with 64 rows has a kernel that uses all registers and all shared memory of a multiprocessor: where
// there are no more blocks than multiprocessors, one block alone waits for its own products and its own
// stages.
constexpr bool has_alone(bool is_float, int rows, int groups) {
  return is_float && rows == 64 && groups == 2;
}

constexpr int columns_of(Plan plan) {
  return plan.groups * kColumnsOfGroup;
}

// k that a block takes at once, and in how many stages it takes all of them.
constexpr int depth_of(bool is_float, Plan plan) {
  return kWarps / plan.groups * kStageSteps * 64 / (is_float ? 4 : 2);
}
constexpr int stages_of(int k, bool is_float, Plan plan) {
  return divide_up(k, depth_of(is_float, plan));
}

// Blocks that are on the GPU at once. A cluster has to fit into one of its parts (GPCs), of 16 to 18
// multiprocessors on an H200: of 264 places, clusters of 4 find 248 and clusters of 8 find 240.
constexpr int resident_blocks(int splits, int multiprocessors) {
  return kBlocksPerSM * multiprocessors - (splits > 2 ? 8 + 2 * splits : 0);
}

struct Layer {
  int m, n, k;
  bool is_float;
  bool transposed;  // the weight is [N, K] in memory
  int multiprocessors;
};

// us that `blocks` blocks of a plan take that begin together: whichever is longest of a block's own way
// through its stages, the arithmetic of the busiest multiprocessor, the weight's way from memory, and the way
// of both operands out of the L2.
constexpr float estimate_wave(const Layer& layer, Plan plan, int blocks) {
  if (blocks == 0) {
    return 0.0f;
  }
  constexpr float kBytesOfMemory = 3.71e6f;  // a us
  constexpr float kBytesOfL2 = 4.61e6f;
  constexpr float kStage = 0.326f;  // us from one stage to the next
  constexpr float kFirstStage = 0.554f;
  constexpr float kAlone = 1.4f;  // how much longer a stage's arithmetic takes one block than half of two
  constexpr float kStageOfFloat[] = {0.16f, 0.67f, 0.923f,
                                     1.27f};  // us of a multiprocessor: 8, 16, 32, 64 rows
  constexpr float kStageOfHalf[] = {0.15f, 0.238f, 0.488f, 0.737f};
  const int height = plan.rows == 8 ? 0 : plan.rows == 16 ? 1 : plan.rows == 32 ? 2 : 3;
  const float arithmetic = layer.is_float ? kStageOfFloat[height] : kStageOfHalf[height];
  const auto stages = static_cast<float>(divide_up(stages_of(layer.k, layer.is_float, plan), plan.splits));
  const float weight = kWarps * kColumnsOfGroup * kStageSteps * 64.0f;
  const float both = weight + static_cast<float>(layer.m * kWarps / plan.groups * kStageSteps * 64);
  // Rows of a tile [K, N] are as short as the tile has columns.
  const float short_rows =
      static_cast<float>(kMostGroups / plan.groups - 1) * (layer.is_float ? 0.016f : 0.35f);
  const float all = static_cast<float>(blocks) * stages;
  const float busiest = static_cast<float>(divide_up(blocks, layer.multiprocessors)) * stages * arithmetic;
  const float alone = kFirstStage + stages * std::max(kStage, kAlone * arithmetic);
  // One block in a multiprocessor has not enough bytes under way to fill a long way from memory.
  const bool is_thin = blocks <= layer.multiprocessors && stages > 8.0f;
  const float thin = !is_thin ? 1.0f : layer.is_float ? 1.005f : 1.13f;
  const float memory = all * weight / kBytesOfMemory * (layer.transposed ? 1.0f : 1.0f + short_rows) * thin;
  return std::max(std::max(busiest, alone), std::max(memory, all * both / kBytesOfL2));
}

// Estimated us of a plan, to compare it with other plans.
constexpr float estimate(const Layer& layer, Plan plan) {
  const int blocks = divide_up(layer.n, columns_of(plan)) * plan.splits;
  const int resident = resident_blocks(plan.splits, layer.multiprocessors);
  const float cluster = plan.splits == 1 ? 0.0f : plan.splits == 2 ? 0.339f : 0.657f;
  const float exchange = plan.splits == 1 ? 0.0f : 0.28e-3f * static_cast<float>(layer.m * columns_of(plan));
  const float crowd = blocks > layer.multiprocessors ? 0.224f : 0.0f;
  return cluster + exchange + crowd +
         static_cast<float>(blocks / resident) * estimate_wave(layer, plan, resident) +
         estimate_wave(layer, plan, blocks % resident);
}

// Blocks of a split layer that times are known of: three times as many as have room at once, or twice where
// more than two share a tile.
constexpr bool is_known(const Layer& layer, Plan plan) {
  const int blocks = divide_up(layer.n, columns_of(plan)) * plan.splits;
  return plan.splits == 1 || (plan.splits <= stages_of(layer.k, layer.is_float, plan) &&
                              blocks <= (plan.splits > 2 ? 2 : 3) * kBlocksPerSM * layer.multiprocessors);
}

// A small layer's weight is asked for ahead. Of a larger one the requests are in the way of the launch before
// (4096 x 4096, bf16, one row: 0.9 us).
constexpr Plan make_plan(const Layer& layer, int groups, int splits, bool alone) {
  Plan plan{round_up_rows(layer.m), groups, splits, alone, 0};
  const int count = divide_up(stages_of(layer.k, layer.is_float, plan), splits);
  const bool is_small = int64_t{layer.n} * layer.k * (layer.is_float ? 4 : 2) <= 10'000'000;
  plan.prefetched = !is_small ? 0 : count <= kMostSlots ? count : 2;
  return plan;
}

// Estimated us of a plan whose blocks have a multiprocessor each: in how many turns they go, times a block's
// own way. Of 132 multiprocessors clusters of 4 and of 8 find 120.
constexpr int turns_alone(const Layer& layer, Plan plan) {
  const int resident = layer.multiprocessors - (plan.splits > 2 ? 12 : 0);
  return divide_up(divide_up(layer.n, columns_of(plan)) * plan.splits, std::max(resident, 1));
}
constexpr float estimate_alone(const Layer& layer, Plan plan) {
  const int stages = divide_up(stages_of(layer.k, layer.is_float, plan), plan.splits);
  const float cluster = plan.splits == 1 ? 0.0f : plan.splits == 2 ? 0.53f : 0.62f;
  return cluster + static_cast<float>(turns_alone(layer, plan)) * (1.2f + 1.5f * static_cast<float>(stages));
}

// The best of them, for up to three turns: it was faster than the other kernel in each of 11 layers (768 x
// 3072: 11.1 us and not 13.5; 1024 x 3072: 14.5, not 25.9; 4096 x 4096: 50.6, not 54.0), and slower with
// twelve (K = 768, N = 50256: 137, not 117). No rows: none.
constexpr Plan choose_alone(const Layer& layer) {
  Plan best{};
  float least = 0.0f;
  for (int splits = 1; splits <= kMostSplits; splits *= 2) {
    const Plan plan = make_plan(layer, 2, splits, true);
    if (splits > stages_of(layer.k, layer.is_float, plan) || turns_alone(layer, plan) > 3) {
      continue;
    }
    const float time = estimate_alone(layer, plan);
    if (best.rows == 0 || time < least) {
      best = plan;
      least = time;
    }
  }
  return best;
}

// The plan with the least estimate; of equals the first.
constexpr Plan choose_plan(const Layer& layer) {
  Plan best{};
  if (has_alone(layer.is_float, round_up_rows(layer.m), 2)) {
    best = choose_alone(layer);
    if (best.rows != 0) {
      return best;
    }
  }
  float least = 0.0f;
  // Estimates are equal, all of them memory, but narrow tiles of a long way even one another out (K = 4096, N
  // = 11008, one row and 8 rows: 47.5 and 48.6 us with 16 columns, 51.5 and 52.4 with 64, 56 and 56.6 with
  // 32).
  const Plan narrow = make_plan(layer, 1, 1, false);
  if (layer.is_float && layer.transposed && layer.m <= 8 &&
      divide_up(layer.n, columns_of(narrow)) >= 2 * resident_blocks(1, layer.multiprocessors) &&
      stages_of(layer.k, layer.is_float, narrow) >= 16) {
    return narrow;
  }
  for (const int groups : {2, 4, 1}) {
    for (int splits = 1; splits <= kMostSplits; splits *= 2) {
      const Plan plan = make_plan(layer, groups, splits, false);
      if (!is_tile(plan.rows, groups) || !is_known(layer, plan)) {
        continue;
      }
      const float time = estimate(layer, plan);
      if (best.rows == 0 || time < least) {
        best = plan;
        least = time;
      }
    }
  }
  return best;
}

// Cases that the policy was made for, on 132 multiprocessors, with the plans that were fastest.
constexpr bool chooses(int m, int n, int k, bool is_float, int groups, int splits) {
  const Plan plan = choose_plan({m, n, k, is_float, true, 132});
  return plan.groups == groups && plan.splits == splits;
}
static_assert(chooses(1, 3072, 768, false, 2, 1) && chooses(32, 3072, 768, false, 2, 1));
static_assert(chooses(16, 768, 3072, false, 2, 4) && chooses(1, 64, 16384, false, 1, 8));
static_assert(chooses(16, 8000, 1280, true, 2, 1) && chooses(64, 4096, 4096, true, 2, 1));
static_assert(chooses(1, 11008, 4096, true, 1, 1) && chooses(1, 11008, 4096, false, 4, 1));
static_assert(chooses(64, 3072, 768, true, 2, 1) && chooses(64, 1024, 1024, true, 2, 2));
static_assert(choose_plan({64, 3072, 768, true, true, 132}).alone);

}  // namespace
}  // namespace aten_ext::cuda
