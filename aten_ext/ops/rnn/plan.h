// The plan of a recurrent layer: which kernels, in numbers. Plain arithmetic on sizes and a GPU, in every
// build, so that aten_ext.explain can answer for a GPU elsewhere. Standard library only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/choice.h"
#include "core/needs.h"
#include "ops/rnn/cell_kernel.h"
#include "ops/rnn/pieces.h"
#include "ops/rnn/problem.h"

namespace aten_ext {
struct Gpu;
}

namespace aten_ext::cuda {

enum class Route : uint8_t {
  Recurrence,  // one projection GEMM, then one launch: for all steps of the layer, or chunk by chunk
  Step,        // a sequence of a few steps: one launch for each, with its projection
};

// Which blocks share a state, and through what: one block; a cluster, through distributed shared memory; all
// blocks, through global memory (ops/rnn/exchange.cuh).
enum class Exchange : uint8_t { Block, Cluster, Grid };

// What multiplies a layer's input with W_ih.
enum class Projection : uint8_t {
  Library,  // cuBLASLt, in the tensors' dtype
  Tf32,     // cuBLASLt, fp32 in TF32, as cuDNN's
  FewRows,  // a kernel of our own, in fp32 (training/few_rows.h)
};

// Of ops/rnn/shapes.h.
enum class KernelFamily : uint8_t { Cluster, Grid, Fma };

// One launch for all steps of a layer, both directions.
struct Recurrence {
  Math math;
  Exchange exchange;
  KernelFamily family;
  uint8_t shape;       // index into the family's list for this math
  int blocks;          // that share the state of a group
  int rows;            // of the batch in a group
  int units;           // of a block
  int threads;         // of a block
  int shared_vectors;  // KernelFamily::Fma: vectors of 128 columns of W_hh that are kept in shared memory
  int shared_bytes;    // of a block
  int64_t grid;        // blocks of the launch
  int64_t words;       // of 64 bits, zero, that states are exchanged through; 0: none
};

struct RnnPlan {
  RnnProblem problem;
  Route route;
  Projection projection[2];   // for Route::Recurrence: of the first layer, others
  Recurrence recurrence;      // of every layer, for Route::Recurrence
  int64_t chunk;              // steps that are projected, and then launched, at once; all, or a part of many
  bool saves;                 // the coefficients of the gradients, into the reserve
  bool overlaps;              // what depends on no kernel here may run beside the last one
  std::vector<Piece> pieces;  // that Route::Recurrence computes, one launch after the other
  CellKernel step[2];         // for Route::Step: of the first layer, of the others

  std::string describe() const;
  Needs needs() const;
};

Choice<RnnPlan> plan_rnn(const RnnProblem& problem, const Gpu& gpu);

// Fills in what follows from math, exchange, blocks and rows: kernel, units, threads, bytes, words. False:
// there is no such kernel.
bool choose_kernel(const RnnProblem& problem, Recurrence& recurrence);

// Whether each of so many blocks all over the GPU has a unit of the state. One without would send nothing
// that the others wait for: they could be two steps ahead and overwrite what it has not read.
constexpr bool has_units_for_all(int blocks, int units, int64_t hidden) {
  return int64_t{blocks - 1} * units < hidden;
}

// Steps of a chunk, so that the projections of a long sequence do not take more memory than they have to.
int64_t choose_chunk(const RnnProblem& problem, const Recurrence& recurrence);

// What one launch after the other computes of a layer, a packed sequence with fewer and fewer rows.
std::vector<Piece> pieces_of_forward(const RnnPlan& plan);

// The reason why the plan's pieces have too much padding; or nullptr.
const char* decline_padding(const RnnPlan& plan);

// A recurrence for the first rows of the batch, by the same kernel: with multiply-adds in as many groups, and
// on tensor cores in fewer groups of as many rows. With other groups the last bit of a sum in TF32 could
// differ.
Recurrence of_fewer_rows(const RnnProblem& problem, const Recurrence& recurrence, int64_t batch);

// Whether a cell's step gains by being one launch: never in TF32, as upstream's two GEMMs are not.
bool is_small_cell(Cell cell, Dtype dtype, int64_t batch, int64_t input, int64_t hidden,
                   int64_t multiprocessors);

}  // namespace aten_ext::cuda
