// The recurrence of a GRU layer on tensor cores: one launch for all steps, W_hh in registers as the A
// operand.
//
// A block has a.units hidden units: 3 * units rows of W_hh (reset rows, then update, then new), in tiles
// of 16. Warp w holds tile w % tiles, and of its columns part w / tiles of k_splits parts. B is h, 8 rows of
// the batch at a time, in shared memory. Products of the parts meet in shared memory; then each thread has a
// hidden unit of a row, adds up, computes its gates in fp32 and publishes. The state that carries over stays
// in fp32 (its own block's); only the matrix product sees it rounded to the operand's type.
//
// The order of columns within a product is free as long as A and B agree. So lane t of four takes 16
// neighbouring bytes of each 64 (not the two times four that the fragment's picture shows): one 16-byte load
// of A or B is the operand of two mma, and rows of h 64 bytes apart modulo 128 are read without bank
// conflict.
//
// Element: __half, __nv_bfloat16 (m16n8k16), or Tf32 (m16n8k8: fp32 tensors, operands rounded to 10 bits of
// mantissa, accumulated in fp32; only where PyTorch allows cuDNN that).
//
// Budget of a step on an H200 (derived, not measured on hardware yet), H = 512, 16-bit, up to 8 rows, 16
// blocks of 12 warps, kPairs = 8: no weights read; 192 mma of 2048 FMAs in a block at about 1024 FMAs a cycle
// = 380 cycles; the longest chain of dependent mma is kPairs / 2 of about 33 cycles; reads of h 12 * 4 KB /
// 128 B = 380 cycles, beside the mma; products to and from shared memory 12 + 12 KB, 200 cycles; gates 150;
// two __syncthreads; slices to 16 blocks and the cluster barrier, 0.24 us alone. About 0.9 us; each 8 rows
// more, 0.35 us.
//
// Registers (ptxas, sm_90a): weights never leave them. With kPairs = 16, and in TF32 in 24 warps, a few
// addresses are kept in local memory, read once a step, outside the products.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <type_traits>

#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_exchange.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/shared.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {

struct Tf32 {
  float value;
};

// Tensor: dtype of the tensors. Operand: what shared memory holds of h.
template <typename Element>
struct GruMma {
  using Tensor = Element;
  using Operand = Element;
  static __device__ __forceinline__ Operand to_operand(float x) {
    return from_op<Element>(x);
  }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4],
                                                      const uint32_t (&b)[2]) {
    mma_m16n8k16<Element>(d, a, b);
  }
};
template <>
struct GruMma<Tf32> {
  using Tensor = float;
  using Operand = uint32_t;
  static __device__ __forceinline__ Operand to_operand(float x) {
    return round_to_tf32(x);
  }
  static __device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4],
                                                      const uint32_t (&b)[2]) {
    mma_m16n8k8_tf32(d, a, b);
  }
};

// A pair of mma covers 64 bytes of a row: 32 columns of 16 bits, 16 in TF32.
template <typename Element>
constexpr int kMmaPairColumns = 64 / static_cast<int>(sizeof(typename GruMma<Element>::Operand));

// At most. 8 registers of weights a pair, and registers belong to quarters of an SM: 8 warps may have 255
// each, 12 warps 168, 24 warps 80. Only a block that has the whole state to itself comes to more than 12.
template <int kPairs, typename Exchange>
constexpr int kMmaThreads = kPairs > 16                                              ? 256
                            : kPairs == 4 && std::is_same_v<Exchange, BlockExchange> ? 768
                                                                                     : 384;

// Rows of the batch, 8 at a time, and the places where they lie.
template <typename Element, typename Exchange>
struct GruMmaLayout {
  int rows;            // rounded up to 8
  int columns;         // of h that products cover
  int row_stride;      // of h, in operands: 64 bytes modulo 128
  int product_stride;  // of products, in floats
  int product_rows;    // k_splits * rows

  __host__ __device__ constexpr GruMmaLayout(int rows_of_group, int units, int k_splits, int pairs)
      : rows((rows_of_group + 7) / 8 * 8),
        columns(k_splits * pairs * kMmaPairColumns<Element>),
        row_stride(columns + (k_splits * pairs % 2 == 0 ? kMmaPairColumns<Element> : 0)),
        // 4 modulo 16: the 8 x 8 corners of a fragment fall into 32 banks.
        product_stride((3 * units + 15) / 16 * 16 + 4),
        product_rows(k_splits * rows) {}

  // h [kBuffers, rows, row_stride], products [product_rows, product_stride], carried [rows, units], and for
  // the cluster's exchange the slice [rows, units] in operands.
  __host__ __device__ constexpr size_t h_bytes() const {
    return static_cast<size_t>(Exchange::kBuffers) * rows * row_stride *
           sizeof(typename GruMma<Element>::Operand);
  }
  __host__ __device__ constexpr size_t product_bytes() const {
    return static_cast<size_t>(product_rows) * product_stride * sizeof(float);
  }
  __host__ __device__ constexpr size_t carried_bytes(int units) const {
    return static_cast<size_t>(rows) * units * sizeof(float);
  }
  __host__ __device__ constexpr size_t bytes(int units) const {
    return h_bytes() + product_bytes() + 2 * carried_bytes(units);
  }
};

// 16 bytes of a row of W_hh from `column`, as operands, zero beyond the last column or where there is no row.
template <typename Element>
__device__ __forceinline__ uint4 gru_load_operands(const typename GruMma<Element>::Tensor* row, int column,
                                                   int hidden, bool vectors) {
  using Operand = typename GruMma<Element>::Operand;
  using Tensor = typename GruMma<Element>::Tensor;
  constexpr int kCount = 16 / sizeof(Operand);
  Tensor values[kCount];
  if (row != nullptr && vectors && column + kCount <= hidden) {
    load_vector(values, row + column);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = row != nullptr && column + i < hidden ? row[column + i] : from_op<Tensor>(0.0f);
    }
  }
  Operand operands[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Operand, Tensor>) {
      operands[i] = values[i];
    } else {
      operands[i] = GruMma<Element>::to_operand(to_op(values[i]));
    }
  }
  uint4 bits;
  memcpy(&bits, &operands, sizeof(bits));
  return bits;
}

template <typename Element, int kPairs, typename Exchange>
__global__ __launch_bounds__((kMmaThreads<kPairs, Exchange>)) void gru_mma_kernel(
    const __grid_constant__ GruArguments a) {
  using Mma = GruMma<Element>;
  using Tensor = typename Mma::Tensor;
  using Operand = typename Mma::Operand;
  constexpr int kVector = 16 / sizeof(Operand);
  constexpr bool kInCluster = std::is_same_v<Exchange, ClusterExchange>;
  constexpr bool kInGrid = std::is_same_v<Exchange, GridExchange>;
  constexpr int kChains = kPairs <= 4 || kPairs == 16 ? 2 : 4;  // of mma that do not wait for each other

  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int group_of_four = lane / 4;  // g and t of the fragments
  const int in_four = lane % 4;
  const GruPlace place = gru_place(a);
  const GruDirectionArguments& d = a.direction[place.direction];
  const int hidden = a.hidden;
  const int units = a.units;
  const int tiles = (3 * units + 15) / 16;
  const int tile = thread / 32 % tiles;
  const int split = thread / 32 / tiles;
  const GruMmaLayout<Element, Exchange> layout(a.rows, units, a.k_splits, kPairs);

  Operand* const buffers = dynamic_shared<Operand>();
  float* const products = reinterpret_cast<float*>(reinterpret_cast<char*>(buffers) + layout.h_bytes());
  float* const carried = products + layout.product_rows * layout.product_stride;
  Operand* const slice = reinterpret_cast<Operand*>(carried + layout.rows * units);

  // Zero, also where no unit ever writes: the weights there are zero, and zero times NaN is not.
  const auto* const h0 = static_cast<const Tensor*>(d.h0) + static_cast<int64_t>(place.first_row) * hidden;
  for (int i = thread; i < Exchange::kBuffers * layout.rows * layout.row_stride; i += threads) {
    const int row = i / layout.row_stride;
    const int column = i % layout.row_stride;
    const bool given = row < place.rows && column < hidden;
    buffers[i] = Mma::to_operand(given ? to_op(h0[static_cast<int64_t>(row) * hidden + column]) : 0.0f);
  }
  for (int i = thread; i < layout.rows * units; i += threads) {
    const int row = i / units;
    const int unit = place.first_unit + i % units;
    carried[i] =
        row < place.rows && unit < hidden ? to_op(h0[static_cast<int64_t>(row) * hidden + unit]) : 0.0f;
    slice[i] = Mma::to_operand(0.0f);
  }

  // W_hh, once: rows g and g + 8 of the tile.
  const auto* const w_hh = static_cast<const Tensor*>(d.w_hh);
  const bool vectors = hidden % (16 / static_cast<int>(sizeof(Tensor))) == 0 && is_vector_aligned(w_hh);
  const auto weight_row = [&](int local) -> const Tensor* {
    const int gate = local / units;
    const int unit = place.first_unit + local % units;
    return gate < 3 && unit < hidden ? w_hh + (static_cast<int64_t>(gate) * hidden + unit) * hidden : nullptr;
  };
  const Tensor* const low_row = weight_row(tile * 16 + group_of_four);
  const Tensor* const high_row = weight_row(tile * 16 + group_of_four + 8);
  const int first_column = split * kPairs * kMmaPairColumns<Element> + in_four * kVector;
  uint4 low[kPairs];
  uint4 high[kPairs];
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    const int column = first_column + pair * kMmaPairColumns<Element>;
    low[pair] = gru_load_operands<Element>(low_row, column, hidden, vectors);
    high[pair] = gru_load_operands<Element>(high_row, column, hidden, vectors);
  }

  // Unit i of this thread: row i / units of the batch, unit i % units of the block, for i = thread, thread +
  // threads...
  const int end_units = place.end_unit - place.first_unit;  // may be negative: a block beyond the last unit
  const auto load_input = [&](int64_t step, int i) {
    GruInput x{0.0f, 0.0f, 0.0f};
    const int row = i / units;
    const int unit = i % units;
    if (row < place.rows && unit < end_units && step < a.steps) {
      const float* const gates = d.gates + gru_time(a, place.direction, step) * a.gate_step +
                                 static_cast<int64_t>(place.first_row + row) * a.gate_row + place.first_unit +
                                 unit;
      x.r = gates[0];
      x.z = gates[hidden];
      x.n = gates[2 * hidden];
    }
    return x;
  };
  const auto load_bias = [&](int i) {
    GruBias bias{0.0f, 0.0f, 0.0f, 0.0f};
    const int unit = place.first_unit + i % units;
    if (unit < place.end_unit && d.b_ih != nullptr) {
      const auto* const b_ih = static_cast<const Tensor*>(d.b_ih);
      const auto* const b_hh = static_cast<const Tensor*>(d.b_hh);
      bias.r = to_op(b_ih[unit]) + to_op(b_hh[unit]);
      bias.z = to_op(b_ih[hidden + unit]) + to_op(b_hh[hidden + unit]);
      bias.in = to_op(b_ih[2 * hidden + unit]);
      bias.hn = to_op(b_hh[2 * hidden + unit]);
    }
    return bias;
  };
  // Of a thread's first unit, a step ahead; most have no other.
  GruInput first_input = load_input(0, thread);
  const GruBias first_bias = load_bias(thread);

  __syncthreads();
  if constexpr (kInCluster) {  // no block writes into another before that one has begun and filled its memory
    cluster_arrive();
    cluster_wait();
  }

  const int directions = static_cast<int>(gridDim.x) / (a.groups * a.blocks);
  constexpr int kOfWord = 4 / static_cast<int>(sizeof(Operand));  // operands
  const int words = (hidden + kOfWord - 1) / kOfWord;
  const auto words_of_row = [&](int64_t step, int row) {
    return a.words + (((step & 1) * directions + place.direction) * a.batch + place.first_row + row) *
                         static_cast<int64_t>(words);
  };

  for (int64_t step = 0; step < a.steps; ++step) {
    const bool last = step + 1 == a.steps;
    const int buffer_size = layout.rows * layout.row_stride;
    const Operand* const h = buffers + (Exchange::kBuffers == 2 ? (step & 1) * buffer_size : 0);
    Operand* const next_h = buffers + (Exchange::kBuffers == 2 ? ((step + 1) & 1) * buffer_size : 0);
    const int64_t time = gru_time(a, place.direction, step);

    for (int row0 = 0; row0 < place.rows; row0 += 8) {
      float sums[kChains][4] = {};
      const Operand* const from = h + (row0 + group_of_four) * layout.row_stride + first_column;
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const uint4 x = *reinterpret_cast<const uint4*>(from + pair * kMmaPairColumns<Element>);
        Mma::multiply_add(sums[pair * 2 % kChains], {low[pair].x, high[pair].x, low[pair].y, high[pair].y},
                          {x.x, x.y});
        Mma::multiply_add(sums[(pair * 2 + 1) % kChains],
                          {low[pair].z, high[pair].z, low[pair].w, high[pair].w}, {x.z, x.w});
      }
      float* const to = products + (split * layout.rows + row0 + 2 * in_four) * layout.product_stride +
                        tile * 16 + group_of_four;
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // [row of the batch, row of the tile]
        float sum = sums[0][i] + sums[1][i];
        if constexpr (kChains == 4) {
          sum += sums[2][i] + sums[3][i];
        }
        to[i % 2 * layout.product_stride + i / 2 * 8] = sum;
      }
    }
    __syncthreads();

    const auto finish = [&](int i, const GruInput& x, const GruBias& bias) {
      const int row = i / units;
      const int unit = i % units;
      if (row >= place.rows || unit >= end_units) {
        return;
      }
      float sum[3] = {0.0f, 0.0f, 0.0f};
      for (int k = 0; k < a.k_splits; ++k) {
        const float* const part = products + (k * layout.rows + row) * layout.product_stride + unit;
        sum[0] += part[0];
        sum[1] += part[units];
        sum[2] += part[2 * units];
      }
      const float value = gru_unit(x, sum[0], sum[1], sum[2], bias, carried[i]);
      carried[i] = value;
      const int64_t batch_row = place.first_row + row;
      static_cast<Tensor*>(d.y)[time * a.y_step + batch_row * a.y_row + place.first_unit + unit] =
          from_op<Tensor>(value);
      if (last) {
        static_cast<Tensor*>(d.hy)[batch_row * hidden + place.first_unit + unit] = from_op<Tensor>(value);
      } else if constexpr (kInCluster || kInGrid) {
        slice[i] = Mma::to_operand(value);
      } else {
        next_h[row * layout.row_stride + place.first_unit + unit] = Mma::to_operand(value);
      }
    };
    finish(thread, first_input, first_bias);
    first_input = load_input(step + 1, thread);  // it has the barrier's time and the next products'
    for (int i = thread + threads; i < place.rows * units; i += threads) {
      finish(i, load_input(step, i), load_bias(i));
    }
    if (last) {
      break;
    }

    if constexpr (kInCluster) {
      __syncthreads();
      // 16 bytes at a time, to each block in turn. Units come in eights, so that a slice is whole vectors;
      // those beyond the last unit are zero.
      const int row_vectors = units / kVector;
      const int vectors_of_slice = place.rows * row_vectors;
      for (int i = thread; i < vectors_of_slice * a.blocks; i += threads) {
        const int rank = i / vectors_of_slice;
        const int row = i % vectors_of_slice / row_vectors;
        const int at = i % row_vectors * kVector;
        if (place.first_unit + at < layout.columns) {
          Operand* const to = next_h + row * layout.row_stride + place.first_unit + at;
          *reinterpret_cast<uint4*>(map_shared(to, static_cast<uint32_t>(rank))) =
              *reinterpret_cast<const uint4*>(slice + row * units + at);
        }
      }
      cluster_arrive();
      cluster_wait();
    } else if constexpr (kInGrid) {
      __syncthreads();
      const int row_words = units / kOfWord;
      const int first_word = place.first_unit / kOfWord;
      for (int i = thread; i < place.rows * row_words; i += threads) {
        const int row = i / row_words;
        const int word = i % row_words;
        if (first_word + word < words) {
          uint32_t data;
          memcpy(&data, slice + row * units + word * kOfWord, sizeof(data));
          store_flagged(words_of_row(step + 1, row) + first_word + word, data,
                        static_cast<uint32_t>(step + 1));
        }
      }
      // All of this block have read the state that is overwritten now: products lie behind a barrier.
      gru_receive(words_of_row(step + 1, 0), place.rows, words, static_cast<uint32_t>(step + 1),
                  [&](int row, int word, uint32_t data) {
                    memcpy(next_h + row * layout.row_stride + word * kOfWord, &data, sizeof(data));
                  });
      __syncthreads();
    } else {
      __syncthreads();
    }
  }
}

}  // namespace aten_ext::cuda
