// Which kernel a GRU layer takes on which GPU: plain arithmetic on sizes, in every build, so that
// aten_ext.explain can answer for a GPU elsewhere. No ATen, no CUDA.
#pragma once

#include <cstdint>

namespace aten_ext {

enum class GruRoute : uint8_t {
  Upstream,
  Recurrence,  // one projection GEMM and direction, then one launch for all steps of the layer
  Step,        // a sequence of one step: one launch for everything
  StepGemm,    // a sequence of one step and many rows: two GEMMs and a launch for the gates
};
// In the order of cuda::RecurrenceMath and cuda::RecurrenceExchange.
enum class GruMath : uint8_t { Fma, Mma, MmaTf32 };
enum class GruExchange : uint8_t { Block, Cluster, Grid };

struct GruSizes {
  bool sixteen_bits;                    // fp16 or bf16; otherwise fp32
  bool tf32_allowed;                    // torch.backends.cudnn.allow_tf32
  int64_t steps, batch, input, hidden;  // input: of the layer with the most features
  int directions;
};

struct GruDevice {
  int multiprocessors;
  int compute_major;
  int clusters[4];  // of 2, 4, 8, 16 blocks that run at once, a block an SM
};

// An H100 or H200: what questions about tensors on the meta device are answered for.
constexpr GruDevice kReferenceGruDevice{132, 9, {66, 30, 15, 7}};

struct GruPlan {
  GruRoute route;
  const char* reason;  // for GruRoute::Upstream
  GruMath math;
  GruExchange exchange;
  int blocks;  // that share the state of a group
  int rows;    // of the batch in a group
};

GruPlan plan_gru(const GruSizes& sizes, const GruDevice& device);

// One step of a cell or a layer as one launch: whether so many rows gain by it.
bool is_small_step(int64_t batch);

}  // namespace aten_ext
