// The fused Adam / AdamW step over a list of tensors, in as few launches as kernel arguments allow.
//
// For each element, with t the step, g the gradient (divided by grad_scale and written back; negated by
// maximize):
//
//   Adam:   g += weight_decay * p         AdamW:   p -= lr * weight_decay * p
//   m = beta1 * m + (1 - beta1) * g
//   v = beta2 * v + (1 - beta2) * g * g                       u = max(u, v) with amsgrad, else v
//   p -= lr / (1 - beta1^t) * m / (sqrt(u) / sqrt(1 - beta2^t) + eps)
//
// (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101; amsgrad: Reddi et al.
// 2018, arXiv:1904.09237.) Arithmetic in fp32 for fp32, fp16 and bf16, in fp64 for fp64. The order of
// operations and the places where a product and a sum are rounded once are those of PyTorch's own CUDA
// kernel as its wheels are compiled (2.11 and later), so that no bit of a result changes. Fused
// multiply-adds are written out: a compiler makes and drops them with the code around them.
//
// Shapes: every list has `count` tensors; tensor i of each is flat, [numel_i]. Bytes an element: reads
// p g m v, writes p m v = 7 * sizeof(T); amsgrad adds 2, grad_scale 1 * sizeof(T). About 20 FLOPs an element,
// of which one square root and two divisions: memory-bound. Ceiling on an H200: 4.16 TB/s in fp32, 4.18 in
// bf16.
//
// 16-bit types have twice the elements for the same bytes, so for them what surrounds the arithmetic counts:
// hints instead of a search for the block's tensor, one power a thread instead of two, five blocks an SM.
// What was measured and what lost: docs/kernels/optimizer.md.
#include "ops/optimizer/cuda/fused_adam.h"

#include <type_traits>

#include "ops/optimizer/cuda/tensor_list_launch.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// fp64 with amsgrad needs 130 registers: 256 threads of that would leave an SM one block (8 warps), 128
// threads leave it three (12 warps).
template <typename T, bool amsgrad>
constexpr int kMaxThreads = std::is_same_v<T, double> && amsgrad ? 128 : 256;
// Blocks that must fit on an SM at once, for which the compiler keeps to 65536 / (threads * blocks)
// registers: the most with which ptxas reports no spill for sm_90a. A fifth list takes more registers, and
// fp64 arithmetic pairs of them.
template <typename T, bool amsgrad>
constexpr int kMinBlocksPerSM = std::is_same_v<T, double> ? (amsgrad ? 3 : 2)
                                : amsgrad                 ? 4
                                                          : 5;
// One vector of each operand a thread; in fp64 several one after the other, because a power in fp64 takes
// longer than the two elements of a vector.
template <typename T>
constexpr int kVectorsPerThread = std::is_same_v<T, double> ? 8 : 1;

// ---- arithmetic --------------------------------------------------------------------------------------

template <typename Op>
struct AdamScalars {
  Op lr, beta1, beta2, weight_decay, eps;
  const float* lr_pointer;
  const float* grad_scale;
  const float* found_inf;
  bool decoupled, maximize;
};

template <typename Op>
struct AdamPerTensor {
  Op lr, step_size, sqrt_bias_correction2, grad_scale;
};

// The optimizer of ops/optimizer/cuda/tensor_list.cuh.
template <typename T, bool amsgrad>
struct Adam {
  using Element = T;
  using Op = MathType<T>;
  using Scalars = AdamScalars<Op>;
  using PerTensor = AdamPerTensor<Op>;
  static constexpr int kLists = amsgrad ? kAdamLists : kAdamLists - 1;
  static constexpr bool kSteps = true;
  static constexpr int kVectorsPerThread = cuda::kVectorsPerThread<T>;
  static constexpr int kMaxThreads = cuda::kMaxThreads<T, amsgrad>;

  // Computed once by each thread while its loads are under way. The two powers are long: even lanes compute
  // one, odd lanes the other.
  static __device__ __forceinline__ PerTensor prepare(const Scalars& s, const OfTensor& tensor) {
    const Op step = static_cast<Op>(*tensor.step);
    const Op lr = s.lr_pointer != nullptr ? static_cast<Op>(*s.lr_pointer) : s.lr;
    const Op bias_correction = 1 - pow(threadIdx.x % 2 == 0 ? s.beta1 : s.beta2, step);
    const Op bias_correction1 = __shfl_sync(0xffffffff, bias_correction, 0);
    const Op bias_correction2 = __shfl_sync(0xffffffff, bias_correction, 1);
    return {lr, lr / bias_correction1, sqrt(bias_correction2),
            s.grad_scale != nullptr ? static_cast<Op>(*s.grad_scale) : Op(1)};
  }

  static __device__ __forceinline__ void update(Op (&x)[kLists], const Scalars& s, const PerTensor& t) {
    Op& param = x[kParam];
    Op grad = s.maximize ? -x[kGrad] : x[kGrad];
    if (s.weight_decay != 0) {
      if (s.decoupled) {
        param = fma(-(t.lr * s.weight_decay), param, param);
      } else {
        grad = fma(param, s.weight_decay, grad);
      }
    }
    x[kExpAvg] = fma(s.beta1, x[kExpAvg], fma(-s.beta1, grad, grad));
    x[kExpAvgSq] = fma(s.beta2, x[kExpAvgSq], fma(-s.beta2, grad * grad, grad * grad));
    Op second_moment = x[kExpAvgSq];
    if constexpr (amsgrad) {
      // std::max, whose answer to a NaN differs from fmax's.
      x[kMaxExpAvgSq] = x[kMaxExpAvgSq] < second_moment ? second_moment : x[kMaxExpAvgSq];
      second_moment = x[kMaxExpAvgSq];
    }
    const Op denominator = sqrt(second_moment) / t.sqrt_bias_correction2 + s.eps;
    param -= t.step_size * x[kExpAvg] / denominator;
  }
};

// ---- kernel and launch -------------------------------------------------------------------------------

template <typename T, bool amsgrad, int bytes>
__global__ __launch_bounds__(kMaxThreads<T, amsgrad>, kMinBlocksPerSM<T, amsgrad>) void fused_adam_kernel(
    const __grid_constant__ ListArguments<Adam<T, amsgrad>, bytes> args) {
  update_list<Adam<T, amsgrad>>(args);
}

template <typename T, bool amsgrad>
Launched launch_dtype(const FusedAdamParams& p, cudaStream_t stream) {
  using Op = MathType<T>;
  const AdamScalars<Op> scalars{static_cast<Op>(p.lr),
                                static_cast<Op>(p.beta1),
                                static_cast<Op>(p.beta2),
                                static_cast<Op>(p.weight_decay),
                                static_cast<Op>(p.eps),
                                p.lr_pointer,
                                p.grad_scale,
                                p.found_inf,
                                p.decoupled,
                                p.maximize};
  return launch_tensor_list<Adam<T, amsgrad>>(fused_adam_kernel<T, amsgrad, kSmallArgumentBytes>,
                                              fused_adam_kernel<T, amsgrad, kLargeArgumentBytes>, scalars,
                                              p.tensors, p.count, p.launch, stream);
}

template <typename T>
Launched launch_dtype(const FusedAdamParams& p, cudaStream_t stream) {
  return p.amsgrad ? launch_dtype<T, true>(p, stream) : launch_dtype<T, false>(p, stream);
}

}  // namespace

Launched launch_fused_adam(const FusedAdamParams& params, cudaStream_t stream) {
  return launch_for_dtype(params.dtype,
                          [&](auto zero) { return launch_dtype<decltype(zero)>(params, stream); });
}

}  // namespace aten_ext::cuda
