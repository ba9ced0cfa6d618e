// One step of a GRU for a few rows of the batch in one launch: both matrix-vector products, biases and gates.
// Formula: device/gru_arguments.cuh.
//
// A hidden unit needs 3 rows of W_ih, 3 rows of W_hh and all of x and h, and nothing of another unit's
// result: a warp (or four, which split the columns) has a unit, reads its 6 rows once, 16 bytes a lane, and
// no block waits for another. The order of every sum is fixed: the same input gives the same bits.
//
// This for one row, and in fp32 for a few; several rows on tensor cores are in device/gru_cell_mma.cuh.
//
// Bytes: 3 * H * (I + H) * sizeof(T), the weights, once for kRows rows of the batch and from the L1 for the
// next; x and h are small and come from the caches. FLOPs: 2 a weight and row. Memory-bound: I = 256, H = 512
// in fp32 is 4.7 MB, 1.1 us at 4.2 TB/s; a launch alone is 0.9, and a chain of loads (weights, sums over
// lanes, gates) about 1.5. Measured on an H200 with weights that are not in the L2, us for I = H = 512: fp32
// 1 row 4.0, 2 rows 5.4, 4 rows 6.0, 8 rows 9.2; 16 bits 1 row 3.6. Upstream 9 to 15.
#include "cuda/gru_cell.h"

#include "cuda/device/gru_arguments.cuh"
#include "cuda/device/gru_cell_mma.cuh"
#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

constexpr int kWarps = 4;
// Rows of the batch that a pass over the weights serves.
constexpr int kSeveralRows = 4;
// Up to so many units (of both directions) all warps of a block share one: with a warp each they would not
// fill 132 SMs with loads.
constexpr int kUnitsToSplit = 1024;
// 16 bits: so many units have enough warps to read weights at full speed without tensor cores.
constexpr int kUnitsOfFma = 2048;
// Tensor cores: rows up to which a warp has four chunks under way, and up to which a block has 16 rows.
constexpr int kRowsOfManyLoads = 32;
constexpr int kRowsOfOneTile = 64;
// Columns below which a quarter of them is less than one load a lane.
constexpr int kColumnsToSplit = 256;

// ---- kernel ------------------------------------------------------------------------------------------

// The four sums of a unit: W_hn h stays apart from W_in x, because r multiplies only the former.
enum Sum { kReset, kUpdate, kInputNew, kHiddenNew, kSums };

template <int kRows>
struct Sums {
  float value[kRows][kSums];
};

// sums[row][first, second, third] += rows of a matrix [3 * hidden, length] times vectors [rows, length], for
// the columns of this lane.
template <typename T, int kRows>
__device__ __forceinline__ void multiply(Sums<kRows>& sums, const T* matrix, const T* const (&vector)[kRows],
                                         int unit, int hidden, int length, int lane, int lanes, Sum third) {
  constexpr int kVector = Vector<T>::kSize;
  const T* const row[3] = {matrix + static_cast<int64_t>(unit) * length,
                           matrix + (static_cast<int64_t>(hidden) + unit) * length,
                           matrix + (2 * static_cast<int64_t>(hidden) + unit) * length};
  bool aligned = length % kVector == 0 && is_vector_aligned(matrix);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    aligned = aligned && is_vector_aligned(vector[r]);
  }
  if (aligned) {
#pragma unroll 4
    for (int at = lane * kVector; at < length; at += lanes * kVector) {
      T w[3][kVector];
#pragma unroll
      for (int gate = 0; gate < 3; ++gate) {
        load_vector(w[gate], row[gate] + at);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        T x[kVector];
        load_vector(x, vector[r] + at);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          const float xi = to_op(x[i]);
          sums.value[r][kReset] = fmaf(to_op(w[0][i]), xi, sums.value[r][kReset]);
          sums.value[r][kUpdate] = fmaf(to_op(w[1][i]), xi, sums.value[r][kUpdate]);
          sums.value[r][third] = fmaf(to_op(w[2][i]), xi, sums.value[r][third]);
        }
      }
    }
    return;
  }
#pragma unroll 4
  for (int at = lane; at < length; at += lanes) {
    const float w0 = to_op(row[0][at]);
    const float w1 = to_op(row[1][at]);
    const float w2 = to_op(row[2][at]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float x = to_op(vector[r][at]);
      sums.value[r][kReset] = fmaf(w0, x, sums.value[r][kReset]);
      sums.value[r][kUpdate] = fmaf(w1, x, sums.value[r][kUpdate]);
      sums.value[r][third] = fmaf(w2, x, sums.value[r][third]);
    }
  }
}

// Grid: [hidden units / units of a block, directions]. kSplit warps share a unit.
template <typename T, int kRows, int kSplit>
__global__ __launch_bounds__(kWarps * 32) void gru_cell_kernel(const __grid_constant__ GruCellParams p) {
  __shared__ float partial[kWarps][kRows][kSums];
  const GruCellDirection& d = p.direction[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int split = warp % kSplit;
  const int unit = static_cast<int>(blockIdx.x) * (kWarps / kSplit) + warp / kSplit;
  const bool exists = unit < p.hidden;
  const int hidden = p.hidden;

  for (int row0 = 0; row0 < p.batch; row0 += kRows) {
    Sums<kRows> sums = {};
    if (exists) {
      const T* x[kRows];
      const T* h[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {  // rows beyond the last are the last again, and go nowhere
        const int64_t row = min(row0 + r, p.batch - 1);
        x[r] = static_cast<const T*>(d.x) + row * p.x_row;
        h[r] = static_cast<const T*>(d.h) + row * p.h_row;
      }
      multiply<T, kRows>(sums, static_cast<const T*>(d.w_ih), x, unit, hidden, p.input, split * 32 + lane,
                         kSplit * 32, kInputNew);
      multiply<T, kRows>(sums, static_cast<const T*>(d.w_hh), h, unit, hidden, hidden, split * 32 + lane,
                         kSplit * 32, kHiddenNew);
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
#pragma unroll
        for (int width = 16; width > 0; width /= 2) {
          sums.value[r][i] += __shfl_xor_sync(0xffffffff, sums.value[r][i], width);
        }
      }
    }
    if constexpr (kSplit > 1) {
      if (lane == 0) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int i = 0; i < kSums; ++i) {
            partial[warp][r][i] = sums.value[r][i];
          }
        }
      }
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
          sums.value[r][i] = 0.0f;
#pragma unroll
          for (int other = 0; other < kSplit; ++other) {
            sums.value[r][i] += partial[warp / kSplit * kSplit + other][r][i];
          }
        }
      }
      __syncthreads();  // before the next rows' sums overwrite these
    }

    // One lane for each row.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = row0 + r;
      if (exists && split == 0 && lane == r && row < p.batch) {
        GruBias bias{0.0f, 0.0f, 0.0f, 0.0f};
        if (d.b_ih != nullptr) {
          const T* const b = static_cast<const T*>(d.b_ih);
          bias.r = to_op(b[unit]);
          bias.z = to_op(b[hidden + unit]);
          bias.in = to_op(b[2 * hidden + unit]);
        }
        if (d.b_hh != nullptr) {
          const T* const b = static_cast<const T*>(d.b_hh);
          bias.r += to_op(b[unit]);
          bias.z += to_op(b[hidden + unit]);
          bias.hn = to_op(b[2 * hidden + unit]);
        }
        const GruInput input{0.0f, 0.0f, sums.value[r][kInputNew]};
        const int64_t at = static_cast<int64_t>(row) * hidden + unit;
        const float before = to_op(static_cast<const T*>(d.h)[row * p.h_row + unit]);
        const float value = gru_unit(input, sums.value[r][kReset], sums.value[r][kUpdate],
                                     sums.value[r][kHiddenNew], bias, before);
        static_cast<T*>(d.hy)[at] = from_op<T>(value);
        if (d.y != nullptr) {
          static_cast<T*>(d.y)[row * p.y_row + unit] = from_op<T>(value);
        }
      }
    }
  }
}

// ---- launch ------------------------------------------------------------------------------------------

template <typename T, int kRows, int kSplit>
cudaError_t launch_rows(const GruCellParams& p, cudaStream_t stream) {
  constexpr int kUnits = kWarps / kSplit;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>((p.hidden + kUnits - 1) / kUnits), static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kWarps * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, gru_cell_kernel<T, kRows, kSplit>, p);
}

template <typename Element, int kTiles, int kBatch>
cudaError_t launch_mma(const GruCellParams& p, cudaStream_t stream) {
  constexpr int kRows = 16 * kTiles;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>((p.hidden + kCellMmaUnits - 1) / kCellMmaUnits),
           static_cast<unsigned>((p.batch + kRows - 1) / kRows), static_cast<unsigned>(p.directions));
  config.blockDim = dim3(kCellMmaWarps * 32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, gru_cell_mma_kernel<Element, kTiles, kBatch>, p);
}

// More chunks of a warp under way while one row of blocks has the GPU to itself; more rows of a block once
// the weights are read by several.
template <typename Element>
cudaError_t launch_mma_rows(const GruCellParams& p, cudaStream_t stream) {
  if (p.batch <= kRowsOfManyLoads) {
    return launch_mma<Element, 1, 4>(p, stream);
  }
  return p.batch <= kRowsOfOneTile ? launch_mma<Element, 1, 2>(p, stream)
                                   : launch_mma<Element, 2, 2>(p, stream);
}

template <typename T>
cudaError_t launch_fma(const GruCellParams& p, cudaStream_t stream) {
  const bool split = p.hidden * p.directions <= kUnitsToSplit && p.hidden + p.input >= kColumnsToSplit;
  if (p.batch == 1) {
    return split ? launch_rows<T, 1, kWarps>(p, stream) : launch_rows<T, 1, 1>(p, stream);
  }
  return split ? launch_rows<T, kSeveralRows, kWarps>(p, stream) : launch_rows<T, kSeveralRows, 1>(p, stream);
}

template <typename T>
cudaError_t launch_16_bits(const GruCellParams& p, cudaStream_t stream) {
  const bool few = p.batch == 1 || (p.batch <= kSeveralRows && p.hidden * p.directions >= kUnitsOfFma);
  return few ? launch_fma<T>(p, stream) : launch_mma_rows<T>(p, stream);
}

}  // namespace

cudaError_t launch_gru_cell(const GruCellParams& params, cudaStream_t stream) {
  switch (params.dtype) {
    case GruCellDtype::Float:
      return params.tf32 ? launch_mma_rows<Tf32>(params, stream) : launch_fma<float>(params, stream);
    case GruCellDtype::Half:
      return launch_16_bits<__half>(params, stream);
    case GruCellDtype::BFloat16:
      return launch_16_bits<__nv_bfloat16>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace aten_ext::cuda
