// A tile of a step: a few rows of the batch times a few vectors of units, whose sums stay in registers until
// the gates have used them. For files compiled for one instruction set.
#pragma once

#include <type_traits>

#include "ops/rnn/cpu/recurrence.h"
#include "ops/rnn/cpu/vector_math.h"

namespace aten_ext::cpu::CPU_CAPABILITY {

inline constexpr int kLanes = Vec::size();

// Rows of a tile, so that its sums, a row of the panel and a factor fit into the registers: 16 with AVX2, 32
// with AVX-512.
constexpr int rows_of_tile(int vectors) {
#if defined(CPU_CAPABILITY_AVX512)
  return vectors == 4 ? 6 : 8;
#else
  return 12 / vectors;
#endif
}

C10_ALWAYS_INLINE Vec load(const float* from, int64_t count) {
  return count >= kLanes ? Vec::loadu(from) : Vec::loadu(from, count);
}
C10_ALWAYS_INLINE void store(const Vec& value, float* to, int64_t count) {
  count >= kLanes ? value.store(to) : value.store(to, static_cast<int>(count));
}

// Products that are added up before they meet the sum of those before: fewer roundings of a large sum.
inline constexpr int64_t kProductsOfPart = 64;

#if defined(CPU_CAPABILITY_AVX512)
inline constexpr int kRegisters = 32;
#else
inline constexpr int kRegisters = 16;
#endif

// sums[r][v] += rows[r][k] * panel[k][v], in the order of k, part by part.
template <int R, int V>
C10_ALWAYS_INLINE void multiply(Vec (&sums)[R][V], const float* const (&rows)[R], const float* panel,
                                int64_t size) {
  for (int64_t begin = 0; begin < size; begin += kProductsOfPart) {
    const int64_t end = size - begin < kProductsOfPart ? size : begin + kProductsOfPart;
    // Where sums and part do not both fit beside a row of the panel and a factor, the sums wait in memory:
    // GCC may keep them and fetch the panel anew for each product (7 rows by 2 vectors: half the speed).
    if constexpr (2 * R * V + V + 1 >= kRegisters - 1) {
      asm volatile("" : "+m"(sums));
    }
    Vec part[R][V];
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        part[r][v] = Vec(0.0f);
      }
    }
    for (int64_t k = begin; k < end; ++k, panel += V * kLanes) {
      Vec column[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        column[v] = Vec::loadu(panel + v * kLanes);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Vec factor(rows[r][k]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) {
          part[r][v] = at::vec::fmadd(factor, column[v], part[r][v]);
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        sums[r][v] = sums[r][v] + part[r][v];
      }
    }
  }
}

// Calls tile(R, first row), R a constant, for tiles of at most kRows rows that cover `rows`, all of nearly
// the same size.
template <int kRows, class Tile>
C10_ALWAYS_INLINE void for_tiles(RnnRange rows, const Tile& tile) {
  const int64_t count = rows.end - rows.begin;
  if (count <= 0) {
    return;
  }
  const int64_t tiles = (count + kRows - 1) / kRows;
  int64_t row = rows.begin;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t size = (rows.end - row + tiles - i - 1) / (tiles - i);
    switch (size) {
      // clang-format off
#define ATEN_EXT_TILE(R) case R: if constexpr (R <= kRows) { tile(std::integral_constant<int, R>(), row); } break;
      // clang-format on
      ATEN_EXT_TILE(1)
      ATEN_EXT_TILE(2)
      ATEN_EXT_TILE(3)
      ATEN_EXT_TILE(4)
      ATEN_EXT_TILE(5)
      ATEN_EXT_TILE(6)
      ATEN_EXT_TILE(7)
      ATEN_EXT_TILE(8)
#undef ATEN_EXT_TILE
      default:
        break;
    }
    row += size;
  }
}

template <class F>
void with_cell(RnnCell cell, const F& f) {
  switch (cell) {
    case RnnCell::Gru:
      return f(std::integral_constant<RnnCell, RnnCell::Gru>());
    case RnnCell::Lstm:
      return f(std::integral_constant<RnnCell, RnnCell::Lstm>());
    case RnnCell::Tanh:
      return f(std::integral_constant<RnnCell, RnnCell::Tanh>());
    case RnnCell::Relu:
      return f(std::integral_constant<RnnCell, RnnCell::Relu>());
  }
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
