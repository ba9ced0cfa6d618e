// A layer's backward at work: what its parts share. No ATen here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/rnn/training/both_directions.h"
#include "ops/rnn/training/layer.h"
#include "ops/rnn/training/scratch.h"

namespace aten_ext::cuda {

struct LayerRun {
  LayerRun(const RnnBackwardPlan& plan, const LayerBackward& layer, cudaStream_t stream)
      : plan(plan),
        layer(layer),
        cell(plan.problem.cell),
        dtype(plan.problem.dtype),
        sizes(plan, layer),
        memory(plan, layer, sizes, layer.scratch),
        directions(plan.problem.directions),
        stream(stream) {}

  const RnnBackwardPlan& plan;
  const LayerBackward& layer;
  Cell cell;
  Dtype dtype;
  LayerSizes sizes;
  Scratch memory;
  int directions;
  cudaStream_t stream;

  bool is_16_bits() const {
    return plan.problem.is_16_bits();
  }
  // The gradient of hx of a single step is made with the input's.
  bool is_step_of_few_rows() const {
    return plan.few_rows && sizes.steps == 1;
  }
  // The states before the first in time of `count` steps; of a single step they are hx.
  const void* states_before(const Piece& piece, int direction, int64_t first, int64_t count) const {
    return memory.previous[0] == nullptr ? sizes.at(layer.hx, direction * sizes.state())
                                         : sizes.at(memory.previous[direction],
                                                    sizes.row(piece, direction, first, count) * sizes.hidden);
  }
  LtProduct new_product(bool tf32) const {
    LtProduct product{};
    product.dtype = dtype;
    product.tf32 = tf32;
    return product;
  }
  cudaError_t products(const LtProduct& product, const Operands& operands, int count,
                       bool apart = false) const {
    return run_products(product, operands, count, apart, stream) ? cudaSuccess : cudaErrorNotSupported;
  }
};

inline const void* moved(const LayerSizes& sizes, const void* from, int64_t elements) {
  return from == nullptr ? nullptr : sizes.at(from, elements);
}

// What works on a run, with short names for what it has.
class LayerPart {
 public:
  explicit LayerPart(const LayerRun& run)
      : run_(run),
        plan_(run.plan),
        layer_(run.layer),
        sizes_(run.sizes),
        memory_(run.memory),
        directions_(run.directions),
        stream_(run.stream) {}

 protected:
  const LayerRun& run_;
  const RnnBackwardPlan& plan_;
  const LayerBackward& layer_;
  const LayerSizes& sizes_;
  const Scratch& memory_;
  const int directions_;
  const cudaStream_t stream_;
};

// Before the first piece, and before each: what the sequential part reads of its forward.
cudaError_t prepare_coefficients(const LayerRun& run);
// Where the forward saved, behind the last launch of the sequential part, and beside it: what the gradients
// of weights read of its states.
cudaError_t states_beside_gates(const LayerRun& run);
cudaError_t coefficients_of_piece(const LayerRun& run, int64_t index);

// The gradients of all gates, in their rows, and those of the first states, in fp32.
cudaError_t run_gates(const LayerRun& run);

}  // namespace aten_ext::cuda
