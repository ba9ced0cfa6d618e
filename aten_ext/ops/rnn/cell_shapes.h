// The kernels of a recurrence that there are, for each cell: the lists of shapes that they are compiled for,
// from which choose_kernel() takes the first that fits. No CUDA.
//
// Each unit needs registers for kGates rows of weights. An LSTM has them for fewer columns than a GRU: where
// a GRU's largest shapes end, its state is that of more blocks, or a part of its weights is in shared memory.
#pragma once

#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/shapes.h"

namespace aten_ext::cuda {

// ClusterFma: blocks, threads, lanes of a team, its units, vectors of four weights a row and lane.
// ClusterMma, ClusterTf32: bytes of an operand, blocks, threads, warps that share a row of W_hh, pairs of mma
//   of each, tiles of 8 rows of the batch.
// GridFma: units, rows at once, lanes that share a unit and row, rows of a lane.
// GridMma, GridTf32: steps of 16 columns, lanes that share a unit and row, rows of a lane, tiles at once, and
//   vectors of weights in shared memory. A smaller layer leaves registers for the words of two tiles at once.
// Fma: threads, lanes of a team, its units, vectors in registers, rows at once.
// kGridFmaRows: at once, where a block has 8 units.
template <typename Sizes>
struct CellShapes;

template <>
struct CellShapes<GruSizes> {
  using ClusterFma = Shapes<ClusterFmaShape<1, 32, 1, 1, 4>, ClusterFmaShape<1, 32, 1, 1, 8>,
                            ClusterFmaShape<1, 128, 2, 1, 8>, ClusterFmaShape<1, 192, 4, 2, 6>,
                            ClusterFmaShape<1, 256, 4, 2, 8>, ClusterFmaShape<4, 256, 8, 2, 8>,
                            ClusterFmaShape<8, 256, 16, 2, 4>, ClusterFmaShape<16, 256, 16, 2, 6>,
                            ClusterFmaShape<16, 256, 16, 2, 8>>;
  using ClusterMma = Shapes<ClusterMmaShape<2, 1, 128, 1, 2, 1>, ClusterMmaShape<2, 1, 256, 1, 4, 1>,
                            ClusterMmaShape<2, 4, 256, 2, 4, 1>, ClusterMmaShape<2, 8, 256, 4, 2, 1>,
                            ClusterMmaShape<2, 8, 256, 2, 8, 1>, ClusterMmaShape<2, 16, 256, 4, 4, 1>,
                            ClusterMmaShape<2, 16, 384, 4, 5, 1>>;
  using ClusterTf32 = Shapes<ClusterMmaShape<4, 4, 256, 2, 8, 1>, ClusterMmaShape<4, 8, 256, 4, 4, 1>,
                             ClusterMmaShape<4, 16, 256, 4, 8, 2>>;
  using GridFma = Shapes<GridFmaShape<16, 1, 2, 1>, GridFmaShape<16, 1, 1, 2>, GridFmaShape<8, 1, 4, 1>,
                         GridFmaShape<8, 2, 4, 1>, GridFmaShape<8, 4, 4, 1>, GridFmaShape<8, 4, 1, 1>>;
  using GridMma = Shapes<GridMmaShape<8, 2, 1, 1>, GridMmaShape<8, 1, 1, 1>, GridMmaShape<8, 1, 2, 1>,
                         GridMmaShape<16, 2, 1, 1>, GridMmaShape<16, 1, 1, 1>, GridMmaShape<16, 1, 2, 1>>;
  using GridTf32 = Shapes<GridMmaShape<4, 1, 1, 1>, GridMmaShape<4, 1, 1, 2>, GridMmaShape<4, 1, 2, 2>,
                          GridMmaShape<8, 2, 1, 1>, GridMmaShape<8, 1, 1, 1>, GridMmaShape<8, 1, 2, 1>>;
  using Fma = Shapes<FmaShape<256, 32, 2, 8, 1>, FmaShape<256, 32, 2, 8, 2>>;
  static constexpr int kGridFmaRows = 4;
};

template <>
struct CellShapes<LstmSizes> {
  using S = LstmSizes;
  using ClusterFma = Shapes<ClusterFmaShape<1, 32, 1, 1, 4, S>, ClusterFmaShape<1, 32, 1, 1, 8, S>,
                            ClusterFmaShape<1, 128, 2, 1, 8, S>, ClusterFmaShape<1, 192, 4, 2, 6, S>,
                            ClusterFmaShape<2, 256, 8, 2, 4, S>, ClusterFmaShape<8, 256, 16, 2, 4, S>,
                            ClusterFmaShape<16, 256, 16, 2, 6, S>>;
  using ClusterMma = Shapes<ClusterMmaShape<2, 1, 128, 1, 2, 1, S>, ClusterMmaShape<2, 1, 256, 1, 4, 1, S>,
                            ClusterMmaShape<2, 4, 256, 2, 4, 1, S>, ClusterMmaShape<2, 8, 256, 4, 2, 1, S>,
                            ClusterMmaShape<2, 16, 256, 4, 4, 1, S>>;
  using ClusterTf32 = Shapes<ClusterMmaShape<4, 8, 256, 4, 4, 1, S>>;
  using GridFma =
      Shapes<GridFmaShape<8, 1, 4, 1, S>, GridFmaShape<8, 2, 4, 1, S>, GridFmaShape<8, 2, 1, 1, S>>;
  using GridMma =
      Shapes<GridMmaShape<4, 1, 1, 1, S>, GridMmaShape<4, 1, 1, 2, S>, GridMmaShape<4, 1, 2, 2, S>,
             GridMmaShape<8, 2, 1, 1, S>, GridMmaShape<8, 1, 1, 1, S>, GridMmaShape<8, 1, 2, 1, S>,
             GridMmaShape<16, 1, 1, 1, S, 8>>;
  using GridTf32 =
      Shapes<GridMmaShape<4, 1, 1, 1, S>, GridMmaShape<4, 1, 1, 2, S>, GridMmaShape<4, 1, 2, 2, S>,
             GridMmaShape<7, 1, 1, 1, S, 4>, GridMmaShape<7, 1, 2, 1, S, 4>, GridMmaShape<8, 1, 1, 1, S, 8>>;
  using Fma = Shapes<FmaShape<256, 32, 2, 6, 1, S>, FmaShape<256, 32, 2, 6, 2, S>>;
  static constexpr int kGridFmaRows = 2;
};

template <>
struct CellShapes<RnnSizes> {
  using S = RnnSizes;
  using ClusterFma = Shapes<ClusterFmaShape<1, 32, 1, 1, 4, S>, ClusterFmaShape<1, 32, 1, 1, 8, S>,
                            ClusterFmaShape<1, 128, 2, 1, 8, S>, ClusterFmaShape<1, 256, 4, 2, 8, S>,
                            ClusterFmaShape<4, 256, 8, 2, 8, S>, ClusterFmaShape<8, 256, 16, 2, 4, S>,
                            ClusterFmaShape<16, 256, 16, 2, 8, S>>;
  using ClusterMma = Shapes<ClusterMmaShape<2, 1, 128, 1, 2, 1, S>, ClusterMmaShape<2, 1, 256, 1, 4, 1, S>,
                            ClusterMmaShape<2, 4, 256, 2, 4, 1, S>, ClusterMmaShape<2, 8, 256, 4, 2, 1, S>,
                            ClusterMmaShape<2, 8, 256, 2, 8, 1, S>, ClusterMmaShape<2, 16, 256, 4, 4, 1, S>,
                            ClusterMmaShape<2, 16, 384, 4, 5, 1, S>>;
  using ClusterTf32 = Shapes<ClusterMmaShape<4, 4, 256, 2, 8, 1, S>, ClusterMmaShape<4, 8, 256, 4, 4, 1, S>,
                             ClusterMmaShape<4, 16, 256, 4, 8, 2, S>>;
  using GridFma =
      Shapes<GridFmaShape<16, 1, 2, 1, S>, GridFmaShape<16, 1, 1, 2, S>, GridFmaShape<8, 1, 4, 1, S>,
             GridFmaShape<8, 2, 4, 1, S>, GridFmaShape<8, 4, 4, 1, S>, GridFmaShape<8, 4, 1, 1, S>>;
  using GridMma = Shapes<GridMmaShape<8, 2, 1, 1, S>, GridMmaShape<8, 1, 1, 1, S>,
                         GridMmaShape<8, 1, 2, 1, S>, GridMmaShape<16, 1, 1, 1, S>>;
  using GridTf32 =
      Shapes<GridMmaShape<4, 1, 1, 1, S>, GridMmaShape<4, 1, 1, 2, S>, GridMmaShape<4, 1, 2, 2, S>,
             GridMmaShape<8, 1, 1, 1, S>, GridMmaShape<8, 1, 2, 1, S>>;
  using Fma = Shapes<FmaShape<256, 32, 2, 16, 1, S>, FmaShape<256, 32, 2, 16, 2, S>>;
  static constexpr int kGridFmaRows = 4;
};

}  // namespace aten_ext::cuda
