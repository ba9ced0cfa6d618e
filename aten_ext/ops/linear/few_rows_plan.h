// How the kernel for few rows (few_rows.cu) cuts a layer into tiles and blocks. Standard library only.
//
// The numbers in estimate() were fitted to times on an H200 (docs/kernels/linear.md). Only the order of plans
// was fitted: they are no physics of their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/math.h"
#include "ops/linear/few_rows_geometry.h"

namespace aten_ext::cuda::few_rows {

// What plans depend on of a GPU: fields of Gpu.
struct Machine {
  int multiprocessors;
  int smem_bytes;               // the most that a block may ask for
  std::array<int, 5> clusters;  // of 1, 2, 4, 8 and 16 blocks, resident with a multiprocessor each
};

struct Plan {
  int rows;        // of mat1 in a tile: M, rounded up to what there is a kernel for
  int groups;      // 1, 2 or 4 times 16 columns of the result in a tile; kWarps / groups warps share its k
  int splits;      // blocks that share a tile's K
  bool alone;      // a block has a multiprocessor to itself
  int prefetched;  // stages of a block whose weight is asked for before the launches before have ended
};

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
  return depth_bytes(plan.groups) / (is_float ? 4 : 2);
}
constexpr int stages_of(int k, bool is_float, Plan plan) {
  return ceil_div(k, depth_of(is_float, plan));
}

// Clusters of so many blocks that are on the GPU at once, each block with a multiprocessor to itself.
// `splits` is a power of two.
constexpr int clusters_of(const Machine& machine, int splits) {
  int log2 = 0;
  while (1 << log2 < splits) {
    ++log2;
  }
  return machine.clusters[static_cast<size_t>(log2)];
}

// Whether the GPU takes the plan's launch. One block without others is no cluster.
constexpr bool fits(const Machine& machine, Plan plan) {
  return smem_bytes(plan.rows, plan.groups, plan.alone) <= machine.smem_bytes &&
         (plan.splits == 1 || clusters_of(machine, plan.splits) > 0);
}

// Blocks of a plan that fits that are on the GPU at once, two to a multiprocessor. A cluster has to fit into
// one of the GPU's parts (GPCs), of 16 to 18 multiprocessors on an H200: of 264 places, clusters of 4 find
// 248 and clusters of 8 find 240. Never 0.
constexpr int resident_blocks(const Machine& machine, int splits) {
  const int places = kBlocksPerMultiprocessor * machine.multiprocessors;
  return splits <= 2 ? std::max(places, splits)
                     : std::max(places - 8 - 2 * splits, kBlocksPerMultiprocessor * splits *
                                                             std::max(clusters_of(machine, splits), 1));
}

struct Layer {
  int m, n, k;
  bool is_float;
  bool transposed;  // the weight is [N, K] in memory
  Machine machine;
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
  const auto stages = static_cast<float>(ceil_div(stages_of(layer.k, layer.is_float, plan), plan.splits));
  const float weight = kWarps * kColumnsOfGroup * kStageSteps * 64.0f;
  const float both = weight + static_cast<float>(layer.m * kWarps / plan.groups * kStageSteps * 64);
  // Rows of a tile [K, N] are as short as the tile has columns.
  const float short_rows =
      static_cast<float>(kMaxGroups / plan.groups - 1) * (layer.is_float ? 0.016f : 0.35f);
  const float all = static_cast<float>(blocks) * stages;
  const float busiest =
      static_cast<float>(ceil_div(blocks, layer.machine.multiprocessors)) * stages * arithmetic;
  const float alone = kFirstStage + stages * std::max(kStage, kAlone * arithmetic);
  // One block in a multiprocessor has not enough bytes under way to fill a long way from memory.
  const bool is_thin = blocks <= layer.machine.multiprocessors && stages > 8.0f;
  const float thin = !is_thin ? 1.0f : layer.is_float ? 1.005f : 1.13f;
  const float memory = all * weight / kBytesOfMemory * (layer.transposed ? 1.0f : 1.0f + short_rows) * thin;
  return std::max(std::max(busiest, alone), std::max(memory, all * both / kBytesOfL2));
}

// Estimated us of a plan by the waves of its blocks.
constexpr float estimate_by_waves(const Layer& layer, Plan plan) {
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  const int resident = resident_blocks(layer.machine, plan.splits);
  const float cluster = plan.splits == 1 ? 0.0f : plan.splits == 2 ? 0.339f : 0.657f;
  const float exchange = plan.splits == 1 ? 0.0f : 0.28e-3f * static_cast<float>(layer.m * columns_of(plan));
  const float crowd = blocks > layer.machine.multiprocessors ? 0.224f : 0.0f;
  return cluster + exchange + crowd +
         static_cast<float>(blocks / resident) * estimate_wave(layer, plan, resident) +
         estimate_wave(layer, plan, blocks % resident);
}

// Estimated us of a plan in 16 bits of up to 8 rows, where the weight's way from memory is nearly all. What
// the GPU reads in a us follows from how evenly its multiprocessors have blocks: with more than one for each
// it reads a sixth less than with one. So the rates are data: by columns of a tile, and by blocks in eighths
// of those that are on the GPU at once. Fitted to the times of all plans of 666 layers on an H200, the last
// terms too; how far the chosen plans are from the fastest, docs/kernels/linear.md says.
constexpr int kEighths = 18;
constexpr float kRates[3][kEighths] = {// TB/s: 16, 32 and 64 columns
                                       {1.53f, 2.48f, 3.18f, 3.16f, 3.02f, 3.37f, 3.82f, 4.07f, 2.90f, 2.80f,
                                        2.61f, 3.02f, 3.11f, 3.21f, 3.48f, 3.11f, 3.29f, 3.25f},
                                       {1.22f, 2.56f, 3.39f, 3.55f, 3.01f, 3.49f, 3.98f, 4.23f, 3.16f, 3.04f,
                                        3.00f, 3.14f, 3.47f, 3.70f, 3.69f, 3.43f, 3.53f, 3.27f},
                                       {0.88f, 3.37f, 3.34f, 3.70f, 3.83f, 4.06f, 2.98f, 3.12f, 3.25f, 3.68f,
                                        3.88f, 4.11f, 3.64f, 3.55f, 3.38f, 3.55f, 3.42f, 3.72f}};

constexpr float estimate_by_rate(const Layer& layer, Plan plan) {
  constexpr float kLaunch = 1.1f;
  constexpr float kFirstStage = 0.334f;
  constexpr float kStage = 0.265f;
  constexpr float kCrowd = 0.602f;
  constexpr float kMat1 = 0.092f;  // of its bytes, which come from the L2
  const int width = plan.groups == 1 ? 0 : plan.groups == 2 ? 1 : 2;
  constexpr float kShortRows[] = {0.75f, 0.18f, 0.0f};  // of a tile [K, N]
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  const int resident = resident_blocks(layer.machine, plan.splits);
  const int stages = ceil_div(stages_of(layer.k, layer.is_float, plan), plan.splits);
  const float weight = kWarps * kColumnsOfGroup * kStageSteps * 64.0f;
  const float both = weight * (layer.transposed ? 1.0f : 1.0f + kShortRows[width]) +
                     kMat1 * static_cast<float>(layer.m * kWarps / plan.groups * kStageSteps * 64);
  const int eighth = std::min(ceil_div(8 * blocks, resident), kEighths) - 1;
  const float memory =
      static_cast<float>(blocks) * static_cast<float>(stages) * both / kRates[width][eighth] * 1e-6f;
  const float alone = kFirstStage + static_cast<float>(stages * ceil_div(blocks, resident)) * kStage;
  const float cluster = plan.splits == 1   ? 0.0f
                        : plan.splits == 2 ? 0.298f
                        : plan.splits == 4 ? 0.399f
                                           : 0.499f;
  const float exchange = plan.splits == 1 ? 0.0f : 0.367e-3f * static_cast<float>(layer.m * columns_of(plan));
  const float crowd = 2 * blocks > resident ? kCrowd : 0.0f;
  // Near the root of fourth powers: where both are as long, neither hides the other.
  const float longer = std::max(memory, alone);
  const float part = std::min(memory, alone) / longer;
  return kLaunch + cluster + exchange + crowd + longer * (1.0f + 0.19f * part * part * part * part);
}

constexpr bool has_smallest_tile(const Layer& layer) {
  return round_up_rows(layer.m) == round_up_rows(1);
}

// Estimated us of a plan, to compare it with other plans.
constexpr float estimate(const Layer& layer, Plan plan) {
  return !layer.is_float && has_smallest_tile(layer) ? estimate_by_rate(layer, plan)
                                                     : estimate_by_waves(layer, plan);
}

// Whether a large weight's blocks leave multiprocessors with half as much to do as others, or with nothing.
constexpr bool is_uneven(const Layer& layer, Plan plan) {
  constexpr int64_t kLargeWeight = 3'000'000;  // bytes
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  const int all = ceil_div(blocks, layer.machine.multiprocessors) * layer.machine.multiprocessors;
  return int64_t{layer.n} * layer.k * (layer.is_float ? 4 : 2) > kLargeWeight &&
         2 * blocks > layer.machine.multiprocessors && blocks <= 2 * layer.machine.multiprocessors &&
         4 * blocks < 3 * all;
}

// Blocks of a split layer that times are known of: three times as many as have room at once, or twice where
// more than two share a tile.
constexpr bool is_known(const Layer& layer, Plan plan) {
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  return plan.splits == 1 ||
         (plan.splits <= stages_of(layer.k, layer.is_float, plan) &&
          blocks <= (plan.splits > 2 ? 2 : 3) * kBlocksPerMultiprocessor * layer.machine.multiprocessors);
}

// A small layer's weight is asked for ahead. Of a larger one the requests are in the way of the launch before
// (4096 x 4096, bf16, one row: 0.9 us).
constexpr Plan make_plan(const Layer& layer, int groups, int splits, bool alone) {
  Plan plan{round_up_rows(layer.m), groups, splits, alone, 0};
  const int count = ceil_div(stages_of(layer.k, layer.is_float, plan), splits);
  const bool is_small = int64_t{layer.n} * layer.k * (layer.is_float ? 4 : 2) <= 10'000'000;
  plan.prefetched = !is_small ? 0 : count <= kMaxSlots ? count : 2;
  return plan;
}

// Estimated us of a plan whose blocks have a multiprocessor each: in how many turns they go, times a block's
// own way. Of 132 multiprocessors clusters of 4 and of 8 find 120.
constexpr int turns_alone(const Layer& layer, Plan plan) {
  const int places = layer.machine.multiprocessors;
  const int resident = plan.splits <= 2
                           ? places
                           : std::max(places - 12, plan.splits * clusters_of(layer.machine, plan.splits));
  return ceil_div(ceil_div(layer.n, columns_of(plan)) * plan.splits, std::max(resident, 1));
}
constexpr float estimate_alone(const Layer& layer, Plan plan) {
  const int stages = ceil_div(stages_of(layer.k, layer.is_float, plan), plan.splits);
  const float cluster = plan.splits == 1 ? 0.0f : plan.splits == 2 ? 0.53f : 0.62f;
  return cluster + static_cast<float>(turns_alone(layer, plan)) * (1.2f + 1.5f * static_cast<float>(stages));
}

// The best of them, for up to three turns: it was faster than the other kernel in each of 11 layers (768 x
// 3072: 11.1 us and not 13.5; 1024 x 3072: 14.5, not 25.9; 4096 x 4096: 50.6, not 54.0), and slower with
// twelve (K = 768, N = 50256: 137, not 117). No rows: none.
constexpr Plan choose_alone(const Layer& layer) {
  Plan best{};
  float least = 0.0f;
  for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
    const Plan plan = make_plan(layer, 2, splits, true);
    if (!fits(layer.machine, plan) || splits > stages_of(layer.k, layer.is_float, plan) ||
        turns_alone(layer, plan) > 3) {
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

// The plan with the least estimate that fits the GPU; of equals the first. No rows: none fits.
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
  if (layer.is_float && layer.transposed && layer.m <= 8 && fits(layer.machine, narrow) &&
      ceil_div(layer.n, columns_of(narrow)) >= 2 * resident_blocks(layer.machine, 1) &&
      stages_of(layer.k, layer.is_float, narrow) >= 16) {
    return narrow;
  }
  for (const int groups : {2, 4, 1}) {
    for (int splits = 1; splits <= kMaxSplits; splits *= 2) {
      const Plan plan = make_plan(layer, groups, splits, false);
      if (!is_tile(plan.rows, groups) || !fits(layer.machine, plan) || !is_known(layer, plan)) {
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

// Cases that the policy was made for, on an H200, with the plans that were fastest.
inline constexpr Machine kH200{132, 227 << 10, {132, 66, 30, 15, 7}};
constexpr bool chooses(int m, int n, int k, bool is_float, int groups, int splits) {
  const Plan plan = choose_plan({m, n, k, is_float, true, kH200});
  return plan.groups == groups && plan.splits == splits;
}
static_assert(chooses(1, 3072, 768, false, 2, 1) && chooses(32, 3072, 768, false, 2, 1));
static_assert(chooses(16, 768, 3072, false, 2, 4) && chooses(1, 64, 16384, false, 1, 8));
static_assert(chooses(16, 8000, 1280, true, 2, 1) && chooses(64, 4096, 4096, true, 2, 1));
static_assert(chooses(1, 11008, 4096, true, 1, 1) && chooses(1, 11008, 4096, false, 4, 1));
static_assert(chooses(64, 3072, 768, true, 2, 1) && chooses(64, 1024, 1024, true, 2, 2));
// 219 blocks of 64 columns take 79.5 us, 437 of 32 columns 54.2; 150 of 16 columns 4.1, 75 of 32 columns 2.5.
static_assert(chooses(8, 13984, 8192, false, 2, 1) && chooses(8, 2400, 408, false, 2, 1));
static_assert(choose_plan({64, 3072, 768, true, true, kH200}).alone);
static_assert(resident_blocks(kH200, 1) == 264 && resident_blocks(kH200, 4) == 248 &&
              resident_blocks(kH200, 8) == 240);

}  // namespace aten_ext::cuda::few_rows
