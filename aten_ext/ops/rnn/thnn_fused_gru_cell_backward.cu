// The backward of a GRU step's gates, from workspace = [r, z, n, hx, hn] of thnn_fused_gru_cell.cu or
// upstream:
//
//   dn = dhy * (1 - z) * (1 - n^2)   dhn = dn * r   dr = dn * hn * (1 - r) * r
//   dz = dhy * (hx - n) * (1 - z) * z               dhx = dhy * z
//
// to the gates of the input as [dr, dz, dn], to those of the state as [dr, dz, dhn]. Arithmetic in fp32 (fp64
// for fp64), in PyTorch's order, with the multiply-add that nvcc makes of it there: the same bits. Only the
// sums of the biases' gradients have an order of their own; dr and dz are summed once for both.
//
// Elements a hidden unit: reads 5 and dhy, writes 6 and dhx: 13 * sizeof(T) bytes.
#include "ops/rnn/thnn_fused_gru_cell_backward.h"

#include "device/vector.cuh"
#include "ops/rnn/cell_sizes.h"
#include "ops/rnn/gates.cuh"
#include "ops/rnn/gates_backward.cuh"

namespace aten_ext::cuda {
namespace {

struct GruBackward {
  using Params = GruGatesBackwardParams;
  static constexpr int kGates = GruSizes::kGates;
  static constexpr int kSaved = 5;

  template <typename T, int kCount>
  static __device__ __forceinline__ void backward(const Params& p, int64_t row, int64_t unit,
                                                  MathType<T> (&sums)[kSums][kCount]) {
    using Op = MathType<T>;
    const int64_t hidden = p.hidden;
    Op saved[kSaved][kCount];
    Op grad_hy[kCount];
#pragma unroll
    for (int i = 0; i < kSaved; ++i) {
      load(saved[i], static_cast<const T*>(p.workspace) + (row * kSaved + i) * hidden + unit);
    }
    load<T>(grad_hy, p.grad_hy, row, unit);

    Op grads[kSums][kCount];  // of r, z, n and hn
    Op grad_hx[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const Op r = saved[0][k];
      const Op z = saved[1][k];
      const Op n = saved[2][k];
      const Op hx = saved[3][k];
      const Op hn = saved[4][k];
      const Op grad_n = grad_hy[k] * (Op(1) - z) * fma(-n, n, Op(1));
      grads[0][k] = grad_n * hn * (Op(1) - r) * r;
      grads[1][k] = grad_hy[k] * (hx - n) * (Op(1) - z) * z;
      grads[2][k] = grad_n;
      grads[3][k] = grad_n * r;
      grad_hx[k] = grad_hy[k] * z;
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        sums[i][k] += stored<T>(grads[i][k]);
      }
    }
    T* const to_input = static_cast<T*>(p.grad_input_gates) + row * kGates * hidden + unit;
    T* const to_hidden = static_cast<T*>(p.grad_hidden_gates) + row * kGates * hidden + unit;
#pragma unroll
    for (int gate = 0; gate < kGates; ++gate) {
      store(to_input + gate * hidden, grads[gate]);
      store(to_hidden + gate * hidden, grads[gate == 2 ? 3 : gate]);
    }
    store(static_cast<T*>(p.grad_hx) + row * hidden + unit, grad_hx);
  }
};

}  // namespace

cudaError_t launch_gru_gates_backward(const GruGatesBackwardParams& p, cudaStream_t stream) {
  return launch_gates_backward<GruBackward>(p, stream);
}

}  // namespace aten_ext::cuda
