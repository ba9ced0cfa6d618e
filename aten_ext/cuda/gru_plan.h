// Which kernel a GRU layer takes on which GPU: plain arithmetic on sizes, in every build, so that
// aten_ext.explain can answer for a GPU elsewhere. No ATen, no CUDA.
#pragma once

#include <cstdint>

namespace aten_ext {

enum class GruRoute : uint8_t {
  Upstream,
  Recurrence,  // one projection GEMM, then one launch for all steps of the layer
  Step,        // a sequence of a few steps: one launch for each, with its projection
};
// In the order of cuda::RecurrenceMath and cuda::RecurrenceExchange.
enum class GruMath : uint8_t { Fma, Mma, MmaTf32 };
enum class GruExchange : uint8_t { Block, Cluster, Grid };

struct GruSizes {
  bool sixteen_bits;  // fp16 or bf16; otherwise fp32
  bool bfloat16;
  bool tf32_allowed;                    // torch.backends.cudnn.allow_tf32
  int64_t steps, batch, input, hidden;  // input: of the layer with the most features
  int directions;
};

struct GruDevice {
  int multiprocessors;
  int compute_major;
  int clusters[3];  // of 4, 8, 16 blocks that run at once, a block an SM
};

// An H100 or H200: what questions about tensors on the meta device are answered for.
constexpr GruDevice kReferenceGruDevice{132, 9, {30, 15, 7}};

struct GruPlan {
  GruRoute route;
  const char* reason;  // for GruRoute::Upstream
  GruMath math;
  GruExchange exchange;
  int blocks;  // that share the state of a group
  int rows;    // of the batch in a group
  bool tf32;   // fp32: the products of GruRoute::Step, or the projection of GruRoute::Recurrence, in TF32
};

GruPlan plan_gru(const GruSizes& sizes, const GruDevice& device);

// Whether a cell's step gains by being one launch: never in TF32, as upstream's two GEMMs are not.
bool is_small_cell(bool sixteen_bits, int64_t batch, int64_t input, int64_t hidden);

}  // namespace aten_ext
