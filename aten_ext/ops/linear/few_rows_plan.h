// How the kernel for few rows (few_rows.cu) cuts a layer into tiles and blocks. Standard library only.
//
// The numbers in estimates were fitted to times of plans (docs/kernels/linear.md). Only the order of plans
// was fitted: they are no physics of their own.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/math.h"
#include "ops/linear/few_rows_geometry.h"
#include "ops/linear/few_rows_rates.h"

namespace aten_ext::cuda::few_rows {

// What plans depend on of a GPU: fields of Gpu.
struct Machine {
  int multiprocessors;
  int smem_bytes;               // the most that a block may ask for
  std::array<int, 5> clusters;  // of 1, 2, 4, 8 and 16 blocks, resident with a multiprocessor each
  int64_t l2_bytes;
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

// What there is a kernel for. A tile of 64 rows and 16 columns has no room in shared memory. Rows that are no
// whole vectors have one width of tiles: the others would be 42 kernels more.
constexpr bool is_tile(int rows, int groups, bool vectors) {
  return vectors ? rows < 64 || groups > 1 : groups == 2;
}

// fp32 with 64 rows has a kernel that uses all registers and all shared memory of a multiprocessor: where
// there are no more blocks than multiprocessors, one block alone waits for its own products and its own
// stages.
constexpr bool has_alone(bool is_float, int rows, int groups, bool vectors) {
  return is_float && rows == 64 && groups == 2 && vectors;
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

// Clusters of so many blocks that are on the GPU at once, each block with a multiprocessor to itself, or of
// the next power of two.
constexpr int clusters_of(const Machine& machine, int splits) {
  int log2 = 0;
  while (1 << log2 < splits) {
    ++log2;
  }
  return machine.clusters[static_cast<size_t>(log2)];
}

// Whether the GPU takes the plan's launch. One block without others is no cluster.
constexpr bool fits(const Machine& machine, Plan plan, Operands of) {
  return smem_bytes(plan.rows, plan.groups, plan.alone, of) <= machine.smem_bytes &&
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
  bool vectors = true;  // rows of both operands are whole vectors of 16 bytes
};

constexpr Operands operands_of(const Layer& layer) {
  return {layer.is_float, layer.transposed, layer.vectors};
}

constexpr int height_of(int rows) {
  return rows == 8 ? 0 : rows == 16 ? 1 : rows == 32 ? 2 : 3;
}

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
  const float arithmetic = (layer.is_float ? kStageOfFloat : kStageOfHalf)[height_of(plan.rows)];
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

constexpr int64_t weight_bytes(const Layer& layer) {
  return int64_t{layer.n} * layer.k * (layer.is_float ? 4 : 2);
}

// The measured rates of layers like this one; nullptr: there are none.
constexpr const Rates* rates_of(const Layer& layer) {
  const Rates& rates = kRates[layer.is_float][height_of(round_up_rows(layer.m))];
  return rates.launch == 0.0f ? nullptr : &rates;
}

// Estimated us of a plan by measured rates. The weight's way from memory, the way of a block alone, the
// arithmetic of the busiest multiprocessor and the L2 hide one another but where they are as long.
constexpr float estimate_by_rate(const Layer& layer, const Plan& plan, const Rates& rates) {
  constexpr float kTera = 1e-6f;  // bytes a us, in TB/s
  const int width = plan.groups == 1 ? 0 : plan.groups == 2 ? 1 : 2;
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  const int resident = resident_blocks(layer.machine, plan.splits);
  const int stages = ceil_div(stages_of(layer.k, layer.is_float, plan), plan.splits);
  const float weight = kWarps * kColumnsOfGroup * kStageSteps * 64.0f;
  const auto mat1 = static_cast<float>(layer.m * kWarps / plan.groups * kStageSteps * 64);
  const float all = static_cast<float>(blocks) * static_cast<float>(stages) * kTera;
  const int eighth = std::min(ceil_div(8 * blocks, resident), kEighths) - 1;
  const float short_rows = layer.transposed ? 0.0f : rates.short_rows[width];
  const float ways[] = {
      all * (weight * (1.0f + short_rows) + rates.mat1 * mat1) / rates.rates[width][eighth],
      rates.first_stage + static_cast<float>(stages * ceil_div(blocks, resident)) * rates.stage,
      static_cast<float>(ceil_div(blocks, layer.machine.multiprocessors) * stages) * rates.arithmetic,
      rates.l2 == 0.0f ? 0.0f : all * (weight + mat1) / rates.l2};
  float longest = 0.0f;
  for (const float way : ways) {
    longest = std::max(longest, way);
  }
  float others = -1.0f;  // the sum of fourth powers, of parts of the longest
  for (const float way : ways) {
    const float part = way / longest * (way / longest);
    others += part * part;
  }
  // Near to the fourth root of 1 + others.
  const float together = longest * (1.0f + 0.25f * others / (1.0f + 0.32f * others));
  const float cluster = plan.splits == 1   ? 0.0f
                        : plan.splits == 2 ? rates.cluster[0]
                        : plan.splits <= 4 ? rates.cluster[1]
                                           : rates.cluster[2];
  const float exchange =
      plan.splits == 1 ? 0.0f : rates.exchange * static_cast<float>(layer.m * columns_of(plan));
  const float crowd = 2 * blocks > resident ? rates.crowd : 0.0f;
  return rates.launch + cluster + exchange + crowd + together;
}

// Estimated us of a plan, to compare it with other plans.
constexpr float estimate(const Layer& layer, const Plan& plan) {
  const Rates* rates = rates_of(layer);
  return rates != nullptr ? estimate_by_rate(layer, plan, *rates) : estimate_by_waves(layer, plan);
}

// Whether a large weight's blocks leave multiprocessors with half as much to do as others, or with nothing.
// Rows that are no whole vectors take longer to copy, so that a smaller weight is large.
constexpr bool is_uneven(const Layer& layer, Plan plan) {
  constexpr int64_t kLargeWeights[2] = {1'200'000, 3'000'000};  // bytes
  const int blocks = ceil_div(layer.n, columns_of(plan)) * plan.splits;
  const int all = ceil_div(blocks, layer.machine.multiprocessors) * layer.machine.multiprocessors;
  return weight_bytes(layer) > kLargeWeights[layer.vectors] && 2 * blocks > layer.machine.multiprocessors &&
         blocks <= 2 * layer.machine.multiprocessors && 4 * blocks < 3 * all;
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
inline constexpr int64_t kPrefetchedBytes = 10'000'000;
constexpr Plan make_plan(const Layer& layer, int groups, int splits, bool alone) {
  Plan plan{round_up_rows(layer.m), groups, splits, alone, 0};
  const int count = ceil_div(stages_of(layer.k, layer.is_float, plan), splits);
  const bool is_small = weight_bytes(layer) <= kPrefetchedBytes;
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
    if (!fits(layer.machine, plan, operands_of(layer)) || splits > stages_of(layer.k, layer.is_float, plan) ||
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
  if (has_alone(layer.is_float, round_up_rows(layer.m), 2, layer.vectors)) {
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
  if (layer.is_float && layer.transposed && layer.vectors && layer.m <= 8 &&
      fits(layer.machine, narrow, operands_of(layer)) &&
      ceil_div(layer.n, columns_of(narrow)) >= 2 * resident_blocks(layer.machine, 1) &&
      stages_of(layer.k, layer.is_float, narrow) >= 16) {
    return narrow;
  }
  const Rates* rates = rates_of(layer);
  const bool any_splits = rates != nullptr && weight_bytes(layer) <= rates->any_splits;
  for (const int groups : {2, 4, 1}) {
    for (int splits = 1; splits <= kMaxSplits; splits += any_splits ? 1 : splits) {
      const Plan plan = make_plan(layer, groups, splits, false);
      if (!is_tile(plan.rows, groups, layer.vectors) || !fits(layer.machine, plan, operands_of(layer)) ||
          !is_known(layer, plan)) {
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

constexpr bool are_equal(const Machine& a, const Machine& b) {
  for (size_t i = 0; i < a.clusters.size(); ++i) {
    if (a.clusters[i] != b.clusters[i]) {
      return false;
    }
  }
  return a.multiprocessors == b.multiprocessors && a.smem_bytes == b.smem_bytes && a.l2_bytes == b.l2_bytes;
}
constexpr bool are_equal(const Layer& a, const Layer& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.is_float == b.is_float && a.transposed == b.transposed &&
         a.vectors == b.vectors && are_equal(a.machine, b.machine);
}

// Cases that the policy was made for, on an H200, with the plans that were fastest.
inline constexpr Machine kH200{132, 227 << 10, {132, 66, 30, 15, 7}, 60 << 20};
constexpr bool chooses(int m, int n, int k, bool is_float, int groups, int splits) {
  const Plan plan = choose_plan({m, n, k, is_float, true, kH200});
  return plan.groups == groups && plan.splits == splits;
}
static_assert(chooses(1, 3072, 768, false, 2, 1) && chooses(32, 3072, 768, false, 2, 1));
static_assert(chooses(16, 768, 3072, false, 1, 2) && chooses(1, 64, 16384, false, 1, 8));
static_assert(chooses(16, 8000, 1280, true, 2, 1) && chooses(64, 4096, 4096, true, 2, 1));
static_assert(chooses(1, 11008, 4096, true, 1, 1) && chooses(1, 11008, 4096, false, 4, 1));
static_assert(chooses(64, 3072, 768, true, 2, 1) && chooses(64, 1024, 1024, true, 2, 2));
// 219 blocks of 64 columns take 79.5 us, 437 of 32 columns 54.2; 150 of 16 columns 4.1, 75 of 32 columns 2.5.
static_assert(chooses(8, 13984, 8192, false, 2, 1) && chooses(8, 2400, 408, false, 2, 1));
static_assert(choose_plan({64, 3072, 768, true, true, kH200}).alone);
static_assert(resident_blocks(kH200, 1) == 264 && resident_blocks(kH200, 4) == 248 &&
              resident_blocks(kH200, 8) == 240);

}  // namespace aten_ext::cuda::few_rows
