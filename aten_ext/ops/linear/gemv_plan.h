// How the kernel for one row, or up to four (gemv.cuh), divides a layer. Standard library only.
//
// The limits were fitted to times of all plans of 164 sizes on an H200 (docs/kernels/linear.md).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/math.h"
#include "ops/linear/few_rows_plan.h"

namespace aten_ext::cuda::gemv {

struct Plan {
  int rows;     // of mat1: 1, 2, or 4 for three or four; 0: this kernel does not take the layer
  int warps;    // that share k, and have their columns together
  int columns;  // of those warps
  int steps;    // loads of each column that a lane is ahead
  bool prefetches;
};

constexpr int kSmallBlock = 128, kWarp = 32;
constexpr int kMostWarps = 16;
constexpr int threads_of(int warps) {
  return warps * kWarp <= kSmallBlock ? kSmallBlock : warps * kWarp;
}

// Whether there is a kernel for a plan.
constexpr bool is_plan(int rows, int warps, int columns, int steps) {
  const bool is_wide = columns == 4;
  const bool is_ahead = rows == 1   ? (is_wide ? steps <= 2 : steps >= 2)
                        : rows == 2 ? columns > 1 && (is_wide ? steps <= 2 : steps == 2)
                                    : steps == 2;
  const int most_steps = rows == 1 && !is_wide ? 4 : 2;
  return is_ahead && (warps < kMostWarps || (steps == most_steps && (rows == 1 || !is_wide)));
}

constexpr int rows_of(int m) {
  return m <= 2 ? m : 4;
}

// Vectors of 16 bytes of a row.
constexpr int vectors_of(const few_rows::Layer& layer) {
  return layer.k / (layer.is_float ? 4 : 8);
}

// Whether the kernel can compute a layer.
constexpr bool can_take(const few_rows::Layer& layer) {
  return layer.transposed && layer.vectors && layer.m <= (layer.is_float ? 4 : 1);
}

// What the choice goes by, for one row, two, and more. Warps are those of an H200: another GPU's limits are
// as many for each multiprocessor.
struct Limits {
  int vectors;     // of 16 bytes: a row of more is another warp's too, of eight at most
  int many_warps;  // of all columns: fewer share a row where that still leaves so many
  int two, four;   // warps from which on each has so many columns
};
inline constexpr Limits kLimits[3] = {{96, 8000, 300, 1000}, {64, 4000, 0, 700}, {64, 2000, 300, 3000}};

// Of three and four rows tiles are faster where the weight is large or has many columns, and of few k and
// many columns but for one row of fp32 (64 -> 16384 in bf16: 2.3 us and not 2.5).
constexpr bool takes(const few_rows::Layer& layer) {
  constexpr int kManyColumns = 4096;
  constexpr int64_t kLargeWeight = 1 << 21;  // elements
  constexpr int kFewVectors = 16;
  if (!can_take(layer)) {
    return false;
  }
  if (layer.m > 2) {
    return layer.n <= kManyColumns && int64_t{layer.n} * layer.k <= kLargeWeight;
  }
  return (layer.is_float && layer.m == 1) || layer.n <= kManyColumns || vectors_of(layer) > kFewVectors;
}

// For a weight that the L2 cannot hold. All of a row is on its way at once: as few warps share it as read it
// in two loads each. A row that is too long for that is read in turns by eight warps; one that would leave
// many of their lanes nothing to read, by half as many, four at most. No warps: so few columns leave a
// multiprocessor idle.
constexpr Plan choose_streaming_plan(const few_rows::Layer& layer) {
  constexpr int kColumns = 4, kMostLoads = 2, kWarpsOfLongRow = 8, kWarpsOfOtherTurns = 4;
  const int vectors = vectors_of(layer);
  const int loads = ceil_div(vectors, kWarp);  // of a lane, if one warp read the row
  const int most_warps = layer.m == 1 ? kMostWarps : kMostWarps / 2;
  int warps = 1;
  while (warps < most_warps && warps * kMostLoads < loads) {
    warps *= 2;
  }
  int steps = loads <= warps && warps < kMostWarps ? 1 : kMostLoads;
  const bool is_long = warps * kMostLoads < loads;
  // Five lanes of eight at most have all of their loads.
  const bool is_sparse = warps > 1 && loads > warps && vectors * 8 <= warps * kMostLoads * kWarp * 5;
  if (is_long || is_sparse) {
    warps = is_long ? kWarpsOfLongRow : std::min(warps / 2, kWarpsOfOtherTurns);
    steps = 1;
  }
  const int blocks = ceil_div(layer.n, kColumns * threads_of(warps) / kWarp / warps);
  if (blocks < layer.machine.multiprocessors) {
    return {};
  }
  // So few blocks at once have too little on its way.
  constexpr int kFewBlocks = 3;  // for each multiprocessor
  if (is_long && blocks < kFewBlocks * layer.machine.multiprocessors) {
    steps = kMostLoads;
  }
  return {rows_of(layer.m), warps, kColumns, steps, false};
}

// Of no rows: the kernel does not take the layer.
constexpr Plan choose_plan(const few_rows::Layer& layer) {
  if (!takes(layer)) {
    return {};
  }
  if (layer.m <= 2 && few_rows::weight_bytes(layer) > layer.machine.l2_bytes) {
    if (const Plan plan = choose_streaming_plan(layer); plan.warps != 0) {
      return plan;
    }
  }
  constexpr int kMaxColumns = 4;
  const Limits& limits = kLimits[layer.m <= 2 ? layer.m - 1 : 2];
  const int vectors = vectors_of(layer);
  const int least_columns = layer.m == 2 ? 2 : 1;
  const auto here = [&](int warps) {
    return int64_t{warps} * layer.machine.multiprocessors / few_rows::kH200.multiprocessors;
  };
  const auto columns_with = [&](int warps) {
    const int64_t all = int64_t{layer.n} * warps;
    return all >= here(limits.four) * kMaxColumns ? kMaxColumns
           : all >= here(limits.two) * 2          ? 2
                                                  : least_columns;
  };
  int warps = 1;
  while (warps < kMostWarps / 2 && warps * limits.vectors < vectors) {
    warps *= 2;
  }
  while (warps > 1 && int64_t{layer.n} * warps >= 2 * here(limits.many_warps) * columns_with(warps)) {
    warps /= 2;
  }
  const int columns = columns_with(warps);
  // A few columns of great depth: all warps that a block can have.
  constexpr int kFewWarps = 800, kDeep = 1024;
  if (warps == kMostWarps / 2 && columns < kMaxColumns &&
      int64_t{layer.n} * warps <= here(kFewWarps) * columns && vectors >= kDeep) {
    warps = kMostWarps;
  }
  const int turns = ceil_div(vectors, kWarp * warps);
  const int steps = layer.m == 1 ? (columns == kMaxColumns             ? (turns <= 3 ? 1 : 2)
                                    : turns <= 2 && warps < kMostWarps ? 2
                                                                       : 4)
                    : layer.m == 2 && columns == kMaxColumns && turns <= 1 ? 1
                                                                           : 2;
  // As in few_rows_plan.h: of a large weight the requests are in the way of the launch before.
  const bool is_small = few_rows::weight_bytes(layer) <= few_rows::kPrefetchedBytes;
  return {rows_of(layer.m), warps, columns, steps, is_small};
}

// Every plan that may be chosen has a kernel.
constexpr bool has_kernels(const few_rows::Machine& machine) {
  for (int m = 1; m <= 4; ++m) {
    for (int is_float = 0; is_float <= 1; ++is_float) {
      for (int k = 8; k <= 1 << 17; k *= 2) {
        for (int n = 1; n <= 1 << 17; n *= 2) {
          const Plan plan = choose_plan({m, n, k + 8, is_float != 0, true, machine, true});
          if (plan.rows != 0 && !is_plan(plan.rows, plan.warps, plan.columns, plan.steps)) {
            return false;
          }
        }
      }
    }
  }
  return true;
}
inline constexpr few_rows::Machine kSixteen{16, 227 << 10, {16, 8, 4, 2, 1}, 4 << 20};
static_assert(has_kernels(few_rows::kH200) && has_kernels(kSixteen));

constexpr bool chooses(int m, int n, int k, bool is_float, int warps, int columns, int steps) {
  const Plan plan = choose_plan({m, n, k, is_float, true, few_rows::kH200});
  return plan.warps == warps && plan.columns == columns && plan.steps == steps;
}
// Plans that the shipped table was measured with.
static_assert(chooses(1, 4096, 4096, true, 16, 4, 2) && chooses(1, 14336, 4096, false, 8, 4, 2));
static_assert(chooses(1, 6144, 8192, false, 16, 4, 2) && chooses(1, 6144, 8200, false, 8, 4, 1));
static_assert(chooses(1, 27648, 4480, false, 4, 4, 1) && chooses(1, 27648, 5128, false, 16, 4, 2));
static_assert(chooses(1, 40960, 2560, false, 4, 4, 1) && chooses(1, 40960, 2568, false, 8, 4, 2));
static_assert(chooses(1, 1580, 14304, true, 8, 4, 2) && chooses(1, 1584, 14304, true, 8, 4, 1));
static_assert(chooses(2, 4096, 14336, true, 8, 4, 1) && chooses(1, 500, 80000, false, 8, 4, 2));
static_assert(chooses(1, 64, 16384, true, 16, 1, 4) && chooses(1, 512, 128, true, 1, 1, 2));
// What leaves an H200 idle fills a small GPU, with more columns a warp.
static_assert(choose_plan({1, 256, 1024, true, true, few_rows::kH200}).columns == 2 &&
              choose_plan({1, 256, 1024, true, true, kSixteen}).columns == 4);

}  // namespace aten_ext::cuda::gemv
