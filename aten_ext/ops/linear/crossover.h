// Where upstream is faster: how a layer finds its cells in a measured table (core/tables.h). Standard library
// only.
//
// The table's axes: dtype, bias, layout, rows, columns n, depth k. A size between two of an axis has both as
// neighbours, and all of a layer's neighbours must be faster, so that nothing is read into a gap. How much
// faster, kAsked says. Sizes beyond an end stand at the end, with a margin.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace aten_ext {
namespace crossover {

// How the weight lies: [n, k] or, of rows, [k, n]. Of [n, k] upstream has kernels of their own for an n that
// is a multiple of a vector of 16 bytes, an odd one, and another even one. Words and Halves: rows of mat1 or
// of the weight are no whole vectors; of Words n, k and the addresses are even.
enum class Layout : uint8_t {
  Transposed,
  TransposedOdd,
  RowMajor,
  TransposedEven,
  TransposedWords,
  TransposedHalves,
  RowMajorWords,
  RowMajorHalves
};
inline constexpr int kLayouts = 8;

// Powers of two, and three numbers of rows between them: upstream's time does not grow with rows. With 25 to
// 31 or 41 to 47 in 16 bits it is up to a fifth faster than with 24, 32 or 48.
inline constexpr std::array<int, 10> kRowsOfCells{1, 2, 4, 8, 16, 24, 28, 32, 44, 64};
inline constexpr int kRows = kRowsOfCells.size();
inline constexpr int kColumns = 37;    // 1, 1.5, 2, 3, 4, 6, ... 262144
inline constexpr int kDepths = 23;     // 8, 12, 16, ... 16384
inline constexpr int kFirstDepth = 3;  // log2

inline constexpr int kDtypes = 3;  // bf16, fp32, fp16

inline constexpr std::array<int64_t, 6> kShape{kDtypes, 2, kLayouts, kRows, kColumns, kDepths};

// The cells of an axis that a size lies between; one, twice, where it is that cell's.
struct Neighbours {
  int low, high;
};

constexpr int floor_log2(int64_t size) {
  int log2 = 0;
  while (size >> (log2 + 1) != 0) {
    ++log2;
  }
  return log2;
}

constexpr Neighbours between_rows(int64_t size) {
  int low = 0;
  while (low + 1 < kRows && kRowsOfCells[low + 1] <= size) {
    ++low;
  }
  return {low, std::min(low + static_cast<int>(kRowsOfCells[low] != size), kRows - 1)};
}

// Powers of two, and one and a half of each. The first cell is 2^first.
constexpr Neighbours between_half_octaves(int64_t size, int first, int cells) {
  const int log2 = floor_log2(size);
  const int64_t power = int64_t{1} << log2;
  const bool upper = 2 * size >= 3 * power;
  const bool exact = size == power || 2 * size == 3 * power;
  const int cell = 2 * (log2 - first) + static_cast<int>(upper);
  const auto clamp = [cells](int i) { return std::clamp(i, 0, cells - 1); };
  return {clamp(cell), clamp(cell + static_cast<int>(!exact))};
}

inline constexpr int64_t kSector = 32, kLine = 128;  // bytes that the memory, or a cache, reads at once

struct Layer {
  int64_t m, n, k;
  bool is_float;  // otherwise 16 bits
  bool is_half;   // of them fp16, which has cells of its own where n or rows are no whole vectors
  bool has_bias;
  Layout layout;
  int64_t mat1_alignment = kLine;  // bytes, of rows that lie apart or begin within a line; kLine of others
  bool has_relu = false;
  bool begins_between_vectors = false;  // an operand whose rows are whole vectors from there on
  bool by_dots = false;                 // dot products (gemv_plan.h), not tiles
};

constexpr int64_t weight_bytes(const Layer& layer) {
  return layer.n * layer.k * (layer.is_float ? 4 : 2);
}

constexpr size_t cell(const Layer& layer, int rows, int columns, int depth) {
  const size_t dtype = layer.is_float ? 1 : layer.is_half ? 2 : 0;
  const size_t kind =
      (dtype * 2 + static_cast<size_t>(layer.has_bias)) * kLayouts + static_cast<size_t>(layer.layout);
  return ((kind * kRows + static_cast<size_t>(rows)) * kColumns + static_cast<size_t>(columns)) * kDepths +
         static_cast<size_t>(depth);
}

// Whether a layer has more columns or depth than the table, and so more tiles than any that was measured.
constexpr bool is_beyond(const Layer& layer) {
  constexpr int kLastColumn = (kColumns - 1) / 2;
  constexpr int kLastDepth = (kDepths - 1) / 2 + kFirstDepth;
  return layer.n > int64_t{1} << kLastColumn || layer.k > int64_t{1} << kLastDepth;
}

// Whether a layer has less depth than the table. Upstream has other kernels there, from one k to the next: of
// 47 rows and 86 columns in fp32 K = 3 takes it 2.2 us, K = 5 7.4, ours 3.9.
constexpr bool is_shallow(const Layer& layer) {
  return layer.k < int64_t{1} << kFirstDepth;
}

// Whether a layer's number of columns is a multiple of a vector of 16 bytes.
constexpr bool has_vectors(const Layer& layer) {
  return layer.layout == Layout::Transposed || layer.layout == Layout::RowMajor;
}

// Whether rows of both operands are whole vectors.
constexpr bool has_rows_of_vectors(const Layer& layer) {
  return layer.layout <= Layout::TransposedEven;
}

// Whether a layer has a number of columns that was measured.
constexpr bool has_measured_columns(const Layer& layer) {
  const Neighbours columns = between_half_octaves(layer.n, 0, kColumns);
  return columns.low == columns.high;
}

constexpr bool is_cell(const Layer& layer) {
  const Neighbours rows = between_rows(layer.m);
  const Neighbours depths = between_half_octaves(layer.k, kFirstDepth, kDepths);
  return has_rows_of_vectors(layer) && rows.low == rows.high && has_measured_columns(layer) &&
         depths.low == depths.high && layer.mat1_alignment >= kLine;
}

// How well cells speak for a layer between them, from well to badly.
enum class Likeness : uint8_t {
  Small,        // a weight that is there as soon as the launch is
  Lines,        // rows of the weight that are whole lines of the cache, as those of nearly all cells are
  Sectors,      // rows that are whole sectors of the memory, or those of a mat1 that is a part of a matrix
  HalfSectors,  // rows that are not: every other one begins within a sector, and is read with half of another
  RowMajor,     // [k, n]: tiles have short rows
  NoVectors,    // n is no multiple of a vector
  NoRows,       // nor are rows of an operand, and no kernel of upstream's reads 8 bytes at once
  NoRowsQuads,  // the same of 16 bits (fp32 has none), where k is a multiple of 8 bytes: no cell is
  NoRowsRowMajor,  // the same of [K, N]
};
inline constexpr int kLikenesses = 9;

constexpr Likeness likeness(const Layer& layer) {
  constexpr int64_t kSmallWeight = 1 << 18;  // bytes
  const int64_t size = layer.is_float ? 4 : 2;
  const int64_t row = layer.layout == Layout::RowMajor ? layer.n : layer.k;
  const bool vectors = has_vectors(layer);
  if (!has_rows_of_vectors(layer)) {
    constexpr int64_t kQuad = 8;
    return layer.layout >= Layout::RowMajorWords            ? Likeness::NoRowsRowMajor
           : !layer.is_float && layer.k * size % kQuad == 0 ? Likeness::NoRowsQuads
                                                            : Likeness::NoRows;
  }
  return vectors && weight_bytes(layer) <= kSmallWeight                ? Likeness::Small
         : row * size % kSector != 0 || layer.mat1_alignment < kSector ? Likeness::HalfSectors
         : layer.layout == Layout::RowMajor                            ? Likeness::RowMajor
         : !vectors                                                    ? Likeness::NoVectors
         : row * size % kLine != 0 || layer.mat1_alignment < kLine     ? Likeness::Sectors
                                                                       : Likeness::Lines;
}

// What cells must show before a layer between them counts as faster, in percent: by bits, likeness, and rows
// of its tile (8, 16, 32, 64). Chosen by what the cells said of the random layers of each kind that were
// below 0.95 of upstream's speed; which of them still pass, docs/kernels/linear.md says.
inline constexpr int kTiles = 4;
inline constexpr int kAsked[2][kLikenesses][kTiles] = {{{107, 107, 112, 115},
                                                        {108, 110, 112, 120},
                                                        {107, 112, 118, 118},
                                                        {125, 135, 150, 130},
                                                        {110, 118, 126, 120},
                                                        {107, 110, 142, 120},
                                                        {112, 110, 110, 112},
                                                        {118, 118, 118, 118},
                                                        {112, 118, 116, 120}},
                                                       {{107, 107, 107, 130},
                                                        {108, 110, 126, 112},
                                                        {107, 107, 115, 118},
                                                        {120, 110, 135, 120},
                                                        {115, 150, 125, 115},
                                                        {125, 110, 150, 135},
                                                        {112, 112, 114, 114},
                                                        {112, 112, 114, 114},
                                                        {112, 114, 114, 145}}};
// The same of a layer beyond all that were measured: its time is a guess.
inline constexpr int kAskedBeyond = 200;
// The most that a cell shows.
inline constexpr int kAskedMost = 255;
// More than any shows.
inline constexpr int kAskedOfUpstreams = 256;
// Depth beyond which a layer is upstream's, as ours splits it among eight blocks at most: of 16 bits, and of
// fp32. Of 204 such layers 19 were below 0.95 of upstream's speed, the least 0.14 (one row, 147752 -> 1 in
// fp32; four rows of 150184 -> 64 in fp16: 0.67). And of rows of whole 8 bytes, of which no cell is: K =
// 30668 had 0.59 in 50 rows of 32 columns in bf16, K = 14444 0.67 in 36 rows of two.
inline constexpr int64_t kDeepest[2] = {1 << 15, 3 << 15};
constexpr bool is_too_deep(const Layer& layer) {
  constexpr int64_t kDeepestOfQuads = 3 << 12;
  return layer.k > (likeness(layer) == Likeness::NoRowsQuads ? kDeepestOfQuads : kDeepest[layer.is_float]);
}
// The same of a large weight whose rows are no whole vectors: of 660 from 16 M elements on one of twenty was
// at 0.71 to 0.87 of what its cells say, and the largest are not measured at all.
inline constexpr int kAskedLarge = 140;
constexpr int64_t kLarge = 1 << 24;  // elements
// And of one row, for which upstream has several kernels: of eight such layers in 16 bits, with 37 to 130 M
// elements, two were below 0.95, the least 0.87 (7105 -> 6336, whose cells have 1.40).
inline constexpr int kAskedLargeOfOneRow = 145;
// And of the largest, which lie between few cells, of 16 bits and of fp32: one row, 13366 -> 13496 in bf16,
// had 0.90, 49 rows, 7934 -> 16384 in fp32, 0.95.
inline constexpr int kAskedLargest = 170;
constexpr int64_t kLargest[2] = {1 << 27, 100'000'000};
constexpr int asked_if_large(const Layer& layer) {
  const int64_t elements = layer.n * layer.k;
  return has_rows_of_vectors(layer) || elements < kLarge ? 0
         : elements >= kLargest[layer.is_float]          ? kAskedLargest
         : layer.m == 1                                  ? kAskedLargeOfOneRow
                                                         : kAskedLarge;
}
// The same in tiles of any weight above all that were measured, in bytes: its cells are those of the largest
// ones. Of 130 such layers in fp32 one of twenty had 0.70 of what they say, of 500 of 128 to 512 MB 0.91; 25
// rows, 3784 -> 65024, whose cells have 1.22, were at 0.89, five of 10240 -> 22016 at 0.97 with 1.47. Dot
// products read the largest as fast as others.
inline constexpr int64_t kMostMeasured = int64_t{512} << 20;
inline constexpr int kAskedAboveMeasured = 150;
constexpr int asked_above_measured(const Layer& layer) {
  return weight_bytes(layer) > kMostMeasured && !layer.by_dots ? kAskedAboveMeasured : 0;
}
// The same of operands that begin between vectors, and many columns: cells are of rows that differ in their
// phase. Of 3,684 layers of views 11 such ones were below 0.95, the least 0.79 (21 rows, 3648 -> 5760 in
// fp16).
constexpr bool is_out_of_step(const Layer& layer) {
  constexpr int64_t kColumnsInStep = 4096;
  return layer.begins_between_vectors && layer.n >= kColumnsInStep;
}
// In fp16 fewer columns ask for more too: of 185 such layers five were below 0.98, the least 0.81 (33 rows,
// 12288 -> 64), of the 140 whose cells have 1.80 one. In bf16 and fp32 none of 326 was.
inline constexpr int kAskedOfHalfBetweenVectors = 175;
constexpr int asked_between_vectors(const Layer& layer) {
  return layer.begins_between_vectors && layer.is_half ? kAskedOfHalfBetweenVectors : 0;
}
// The same of one row in fp32 with a ReLU and a small weight: upstream takes another kernel than without, and
// was seen to take 0.8 of what the cell says (1536 -> 256: 0.92, where its cell has 1.13), or 0.75 where
// there is some depth (544 -> 512: 0.94, where it has 1.25).
inline constexpr int kAskedOfReLU = 120;
inline constexpr int kAskedOfReLUInDepth = 130;
constexpr int asked_of_relu(const Layer& layer) {
  constexpr int64_t kSmall = 1 << 19;  // elements
  constexpr int64_t kDepth = 256;
  const bool one_row = layer.has_relu && layer.is_float && layer.m == 1 && layer.n * layer.k <= kSmall;
  return !one_row ? 0 : layer.k > kDepth ? kAskedOfReLUInDepth : kAskedOfReLU;
}
// The same of many columns in fp32 between cells, where upstream's time goes up and down, most where K is
// small: of 233 such layers with K below 512 four were below 0.98, the least 0.76 (ten rows, 208 -> 32704:
// 15.6 us and 20.6, and its cells have 1.45), of 913 others one (0.96, whose cells have 1.18). By dot
// products one of 114 was (0.97, K = 40), of 184 others none; in 16 bits one of some 780: one row by dot
// products, 576 -> 22016 (0.94, 1.10), a block of one warp for four columns, of which 4,224 are on an H200 at
// once.
inline constexpr int kAskedWide[2][2] = {{150, 120}, {130, 0}};  // of small K, and of others
inline constexpr int kAskedWideOfHalf = 120;                     // of small K, by dot products
constexpr int asked_if_wide(const Layer& layer) {
  constexpr int64_t kManyColumns = 1 << 14;
  constexpr int64_t kSomeDepth[2] = {1024, 512};
  const bool has_depth = layer.k >= kSomeDepth[layer.is_float];
  return layer.n <= kManyColumns || is_cell(layer) ? 0
         : layer.is_float                          ? kAskedWide[layer.by_dots][has_depth]
         : layer.by_dots && !has_depth             ? kAskedWideOfHalf
                                                   : 0;
}
// The same of a layer whose blocks leave a part of the GPU idle (few_rows_plan.h), unless its cell did so
// too.
inline constexpr int kAskedUneven = 120;
inline constexpr int kAskedUnevenNoRows = 170;

// Rows of a layer's tile: 8, 16, 32, 64.
constexpr int tile_of(const Layer& layer) {
  constexpr int kSmallestTile = 8;
  int tile = 0;
  while (tile + 1 < kTiles && layer.m > kSmallestTile << tile) {
    ++tile;
  }
  return tile;
}

// Of 193 such layers in tiles of 64 rows four were below 0.98, the least 0.84 (58 rows, 3320 -> 10562 in
// bf16); later one was at 0.58 (58 rows of a wider matrix, 4856 -> 5594 in fp16, whose cells have 1.60).
constexpr int asked_if_uneven(const Layer& layer) {
  return has_rows_of_vectors(layer) && tile_of(layer) < kTiles - 1 ? kAskedUneven : kAskedUnevenNoRows;
}

// The same of a layer in a graph, by the table of those. There launches do not overlap, so that a ratio says
// what a layer's own time is, and cells speak better for their neighbours.
inline constexpr int kAskedInGraphs[2][kLikenesses][kTiles] = {{{106, 106, 106, 116},
                                                                {104, 104, 114, 115},
                                                                {106, 110, 112, 112},
                                                                {122, 124, 112, 112},
                                                                {110, 112, 106, 106},
                                                                {108, 104, 118, 106},
                                                                {116, 112, 104, 110},
                                                                {122, 110, 112, 110},
                                                                {106, 110, 112, 114}},
                                                               {{108, 104, 104, 110},
                                                                {106, 106, 104, 112},
                                                                {106, 106, 106, 112},
                                                                {108, 108, 120, 116},
                                                                {108, 104, 106, 116},
                                                                {112, 106, 112, 128},
                                                                {106, 104, 110, 116},
                                                                {106, 104, 110, 116},
                                                                {106, 104, 108, 145}}};
// The same in a graph of a mat1 whose rows begin within a sector, as cells' do not: as much as elsewhere. 10
// rows of a wider matrix, 3072 -> 3072 in bf16, whose cells have 1.28 and 1.33, were at 0.92.
constexpr int asked_of_part(const Layer& layer, bool in_graph) {
  const bool is_part = in_graph && layer.mat1_alignment < kSector;
  return is_part ? kAsked[layer.is_float][static_cast<size_t>(likeness(layer))][tile_of(layer)] : 0;
}
// What a layer's cells must show, where a cell itself must show `of_cell`.
constexpr int asked(const Layer& layer, int of_cell, bool in_graph) {
  const auto& of_likeness = (in_graph ? kAskedInGraphs : kAsked)[layer.is_float];
  const int more = is_too_deep(layer)                           ? kAskedOfUpstreams
                   : is_shallow(layer) || is_out_of_step(layer) ? kAskedMost
                   : is_beyond(layer)                           ? kAskedBeyond
                   : is_cell(layer) ? of_cell
                                    : of_likeness[static_cast<size_t>(likeness(layer))][tile_of(layer)];
  return std::max({more, of_cell, asked_of_part(layer, in_graph), asked_if_large(layer),
                   asked_above_measured(layer), asked_between_vectors(layer), asked_of_relu(layer),
                   asked_if_wide(layer)});
}

// Of a weight up to this part of the L2, in tenths, much stays there from call to call. Upstream gains more
// by that than ours, so a table of its own is asked too; it has 255 where ours is far ahead.
inline constexpr int64_t kResidentTenths = 11;
// Whether a weight takes more than so many tenths of the L2.
constexpr bool takes_tenths(const Layer& layer, int64_t tenths, int64_t l2_bytes) {
  return weight_bytes(layer) * 10 > tenths * l2_bytes;
}
constexpr bool may_stay_in_l2(const Layer& layer, int64_t l2_bytes) {
  return !takes_tenths(layer, kResidentTenths, l2_bytes);
}
// What cells must show there before a layer between them counts as no slower. Of 8,038 random layers that
// were ours and called over one set of operands 21 were below 0.98 of upstream's speed, 17 of which go
// upstream if they ask for 110, and erratic ones for the next figure, with 332 others. Of 13,689 later ones
// that asked for 110 or less 21 were, and 14 of those had less than these.
inline constexpr int kAskedInL2[kTiles] = {115, 115, 115, 120};
// The same of four kinds whose times differ more from those of their cells: of rows that begin within a
// sector; of a weight from this part of the L2 on, in tenths, as how much of it stays differs from size to
// size (14 rows, 5392 -> 3712 in bf16: 0.81, whose cells have 1.10); and of many rows in fp32 whose K,
// rounded up to a multiple of 64, is a twentieth longer or more (49 rows, 272 -> 6144: 0.85, 1.15). Of 354 of
// these four were below 0.98, of 1,410 others two. And of tiles of 64 rows whose weight has rows of no whole
// lines (33 rows, 9836 -> 128 in bf16: 0.81): of 55 whose cells had less than this seven were below 0.98.
inline constexpr int kAskedInL2OfErratic = 128;
inline constexpr int64_t kMuchOfL2Tenths = 6;
constexpr bool has_ragged_depth(const Layer& layer) {
  constexpr int64_t kStep = 64;  // elements of K
  const int64_t missing = (kStep - layer.k % kStep) % kStep;
  return layer.is_float && tile_of(layer) >= 2 && 20 * missing >= layer.k;
}
constexpr bool is_largest_tile_of_parts(const Layer& layer) {
  return tile_of(layer) == kTiles - 1 &&
         (likeness(layer) == Likeness::Sectors || likeness(layer) == Likeness::NoRowsQuads);
}
constexpr int asked_in_l2(const Layer& layer, int of_cell, int64_t l2_bytes) {
  const bool is_erratic = likeness(layer) == Likeness::HalfSectors ||
                          takes_tenths(layer, kMuchOfL2Tenths, l2_bytes) || has_ragged_depth(layer) ||
                          is_largest_tile_of_parts(layer);
  return is_cell(layer) ? of_cell
                        : std::max(of_cell, is_erratic ? kAskedInL2OfErratic : kAskedInL2[tile_of(layer)]);
}

// The least of upstream's time / ours in percent, of a layer's neighbours.
constexpr int least_percent(const uint8_t* table, const Layer& layer) {
  // Of less depth than was measured all rows speak: which of them are like it is not known.
  const Neighbours rows = is_shallow(layer) ? Neighbours{0, kRows - 1} : between_rows(layer.m);
  const Neighbours columns = between_half_octaves(layer.n, 0, kColumns);
  const Neighbours depths = between_half_octaves(layer.k, kFirstDepth, kDepths);
  int least = 255;
  for (const int row : {rows.low, rows.high}) {
    for (const int column : {columns.low, columns.high}) {
      for (const int depth : {depths.low, depths.high}) {
        least = std::min<int>(least, table[cell(layer, row, column, depth)]);
      }
    }
  }
  return least;
}

static_assert(between_rows(1).high == 0 && between_rows(5).low == 2 && between_rows(5).high == 3 &&
              between_rows(26).low == 5 && between_rows(26).high == 6 && between_rows(64).low == kRows - 1);
static_assert(between_half_octaves(768, 0, kColumns).low == between_half_octaves(768, 0, kColumns).high);
static_assert(between_half_octaves(1, kFirstDepth, kDepths).high == 0);
static_assert(between_half_octaves(1'000'000, 0, kColumns).low == kColumns - 1);
static_assert(between_half_octaves(9, kFirstDepth, kDepths).low == 0 &&
              between_half_octaves(9, kFirstDepth, kDepths).high == 1);

}  // namespace crossover

// cuBLASLt: 64 x 64 in float32 and 256 rows take upstream 13.2 us, ours 13.7; with 65 rows 13.0 and 13.1.
inline constexpr int64_t kTinyWeight = 1 << 16;
constexpr bool upstream_asks_lt_faster(int64_t m, int64_t n, int64_t k, bool is_float) {
  return is_float && m >= 128 && n * k < kTinyWeight;
}

}  // namespace aten_ext
