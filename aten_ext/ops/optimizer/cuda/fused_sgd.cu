// The fused SGD step over a list of tensors, in as few launches as kernel arguments allow.
//
// For each element, with g the gradient (divided by grad_scale and written back; negated by maximize):
//
//   g += weight_decay * p
//   b = g at the first step, else momentum * b + (1 - dampening) * g         with momentum
//   g += momentum * b   with nesterov, else g = b                           with momentum
//   p -= lr * g
//
// (Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, in torch.optim.SGD's form, where
// the learning rate multiplies the buffer and not each gradient in it.) Arithmetic in fp32 for fp32, fp16 and
// bf16, in fp64 for fp64. The order of operations and the places where a product and a sum are rounded once
// are those of PyTorch's own CUDA kernel in its wheel of 2.11, read from that kernel's machine code for
// sm_90. Its compiler made code of its own for some combinations of flags. Of a tensor that it loads and
// stores by fours, with maximize and without weight_decay or a grad_scale, it rounds (1 - dampening) * g and
// not momentum * b on its own (not in fp64); so does ours. With a grad_scale, in fp32 and fp64, it rounds
// lr * g on its own for some elements of a four (in fp32 three of them); ours rounds the update of a
// parameter once for all.
//
// Shapes: every list has `count` tensors; tensor i of each is flat, [numel_i]. Bytes an element: reads p g,
// writes p = 3 * sizeof(T); momentum reads and writes b as well, 5 * sizeof(T); grad_scale adds
// 1 * sizeof(T). 2 to 9 FLOPs an element: memory-bound. Ceiling on an H200: 4.16 TB/s in fp32, 4.18 in bf16.
// What was measured: docs/kernels/optimizer.md.
#include "ops/optimizer/cuda/fused_sgd.h"

#include "ops/optimizer/cuda/tensor_list_launch.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Blocks of 256 threads that must fit on an SM at once, for which the compiler keeps to 65536 / (256 *
// blocks) registers: the most with which ptxas reports no spill, for sm_80 and sm_90a.
template <typename T, bool has_momentum>
constexpr int kMinBlocksPerSM = sizeof(T) == 8 ? 4
                                : has_momentum ? 5
                                               : 6;

// ---- arithmetic --------------------------------------------------------------------------------------

template <typename Op>
struct SgdScalars {
  Op weight_decay, momentum, lr, one_minus_dampening;
  const float* lr_pointer;
  const float* grad_scale;
  const float* found_inf;
  bool nesterov, maximize, is_first_step;
};

template <typename Op>
struct SgdPerTensor {
  Op lr, grad_scale;
  bool rounds_gradient;  // times 1 - dampening, on its own
};

// The optimizer of ops/optimizer/cuda/tensor_list.cuh.
template <typename T, bool has_momentum>
struct Sgd {
  using Element = T;
  using Op = MathType<T>;
  using Scalars = SgdScalars<Op>;
  using PerTensor = SgdPerTensor<Op>;
  static constexpr int kLists = has_momentum ? kSgdLists : kSgdLists - 1;
  static constexpr bool kSteps = false;
  static constexpr int kVectorsPerThread = 1;
  static constexpr int kMaxThreads = 256;

  static __device__ __forceinline__ PerTensor prepare(const Scalars& s, const OfTensor& tensor) {
    return {s.lr_pointer != nullptr ? static_cast<Op>(*s.lr_pointer) : s.lr,
            s.grad_scale != nullptr ? static_cast<Op>(*s.grad_scale) : Op(1),
            sizeof(Op) < sizeof(double) && tensor.is_upstreams_vectors && s.maximize && s.weight_decay == 0 &&
                s.grad_scale == nullptr};
  }

  static __device__ __forceinline__ void update(Op (&x)[kLists], const Scalars& s, const PerTensor& t) {
    Op grad = s.maximize ? -x[kGrad] : x[kGrad];
    if (s.weight_decay != 0) {
      grad = fma(x[kParam], s.weight_decay, grad);
    }
    if constexpr (has_momentum) {
      Op& buffer = x[kMomentumBuffer];
      const Op decayed = t.rounds_gradient ? fma(s.momentum, buffer, s.one_minus_dampening * grad)
                                           : fma(s.one_minus_dampening, grad, s.momentum * buffer);
      buffer = s.is_first_step ? grad : decayed;
      grad = s.nesterov ? fma(buffer, s.momentum, grad) : buffer;
    }
    x[kParam] = fma(grad, -t.lr, x[kParam]);
  }
};

// ---- kernel and launch -------------------------------------------------------------------------------

template <typename T, bool has_momentum, int bytes>
__global__
__launch_bounds__(Sgd<T, has_momentum>::kMaxThreads, kMinBlocksPerSM<T, has_momentum>) void fused_sgd_kernel(
    const __grid_constant__ ListArguments<Sgd<T, has_momentum>, bytes> args) {
  update_list<Sgd<T, has_momentum>>(args);
}

template <typename T, bool has_momentum>
Launched launch_dtype(const FusedSgdParams& p, cudaStream_t stream) {
  using Op = MathType<T>;
  const SgdScalars<Op> scalars{static_cast<Op>(p.weight_decay),
                               static_cast<Op>(p.momentum),
                               static_cast<Op>(p.lr),
                               Op(1) - static_cast<Op>(p.dampening),
                               p.lr_pointer,
                               p.grad_scale,
                               p.found_inf,
                               p.nesterov,
                               p.maximize,
                               p.is_first_step};
  return launch_tensor_list<Sgd<T, has_momentum>>(fused_sgd_kernel<T, has_momentum, kSmallArgumentBytes>,
                                                  fused_sgd_kernel<T, has_momentum, kLargeArgumentBytes>,
                                                  scalars, p.tensors, p.count, p.launch, stream);
}

template <typename T>
Launched launch_dtype(const FusedSgdParams& p, cudaStream_t stream) {
  return p.momentum != 0 ? launch_dtype<T, true>(p, stream) : launch_dtype<T, false>(p, stream);
}

}  // namespace

Launched launch_fused_sgd(const FusedSgdParams& params, cudaStream_t stream) {
  return launch_for_dtype(params.dtype,
                          [&](auto zero) { return launch_dtype<decltype(zero)>(params, stream); });
}

}  // namespace aten_ext::cuda
