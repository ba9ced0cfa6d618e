// The fused Adagrad step over a list of tensors, in as few launches as kernel arguments allow.
//
// For each element, with t the step, g the gradient (divided by grad_scale and written back; negated by
// maximize):
//
//   g += weight_decay * p
//   s += g * g
//   p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
//
// (Duchi, Hazan & Singer 2011, https://jmlr.org/papers/v12/duchi11a.html, the diagonal form.) The order of
// operations and every rounding are those of PyTorch's own CUDA kernel (2.11), whose scalars are fp64: for
// fp32, fp16 and bf16 tensors g, s and the square root are fp32, while g + weight_decay * p and the update of
// p are computed in fp64 and rounded to fp32 at the end. To be of the same answer this kernel does the same,
// fp64 division included.
//
// Shapes: every list has `count` tensors; tensor i of each is flat, [numel_i]. Bytes an element: reads p g s,
// writes p s = 5 * sizeof(T); grad_scale adds 1 * sizeof(T). About 8 FLOPs an element, of which one division
// in fp64 and one square root. The ceiling on an H200 is memory (210 G elements/s in fp32, 420 G in bf16);
// bf16 is close to that of fp64 as well (450 G). docs/kernels/optimizer.md.
#include "ops/optimizer/cuda/fused_adagrad.h"

#include "ops/optimizer/cuda/tensor_list_launch.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Blocks of 256 threads that must fit on an SM at once, for which the compiler keeps to 65536 / (256 *
// blocks) registers. Arithmetic in fp64 takes pairs of them. ptxas for sm_80 and sm_90a reports no spill.
template <typename T>
constexpr int kMinBlocksPerSM = sizeof(T) == 8 ? 3 : 4;

// ---- arithmetic --------------------------------------------------------------------------------------

struct AdagradScalars {
  double lr, lr_decay, weight_decay, eps;
  const float* lr_pointer;
  const float* grad_scale;
  const float* found_inf;
  bool maximize;
};

template <typename Op>
struct AdagradPerTensor {
  double rate;
  Op grad_scale;
};

// The optimizer of ops/optimizer/cuda/tensor_list.cuh.
template <typename T>
struct Adagrad {
  using Element = T;
  using Op = MathType<T>;
  using Scalars = AdagradScalars;
  using PerTensor = AdagradPerTensor<Op>;
  static constexpr int kLists = kAdagradLists;
  static constexpr bool kSteps = true;
  static constexpr int kVectorsPerThread = 1;
  static constexpr int kMaxThreads = 256;

  static __device__ __forceinline__ PerTensor prepare(const Scalars& s, const OfTensor& tensor) {
    const double lr = s.lr_pointer != nullptr ? static_cast<double>(*s.lr_pointer) : s.lr;
    const float steps_before = *tensor.step - 1;  // in fp32, as upstream
    return {lr / fma(static_cast<double>(steps_before), s.lr_decay, 1.0),
            s.grad_scale != nullptr ? static_cast<Op>(*s.grad_scale) : Op(1)};
  }

  static __device__ __forceinline__ void update(Op (&x)[kLists], const Scalars& s, const PerTensor& t) {
    Op grad = s.maximize ? -x[kGrad] : x[kGrad];
    const double param = x[kParam];
    if (s.weight_decay != 0) {
      grad = static_cast<Op>(fma(param, s.weight_decay, static_cast<double>(grad)));
    }
    x[kStateSum] = fma(grad, grad, x[kStateSum]);
    const double denominator = static_cast<double>(sqrt(x[kStateSum])) + s.eps;
    x[kParam] = static_cast<Op>(param - t.rate * static_cast<double>(grad) / denominator);
  }
};

// ---- kernel and launch -------------------------------------------------------------------------------

template <typename T, int bytes>
__global__ __launch_bounds__(Adagrad<T>::kMaxThreads, kMinBlocksPerSM<T>) void fused_adagrad_kernel(
    const __grid_constant__ ListArguments<Adagrad<T>, bytes> args) {
  update_list<Adagrad<T>>(args);
}

template <typename T>
Launched launch_dtype(const FusedAdagradParams& p, cudaStream_t stream) {
  const AdagradScalars scalars{p.lr,         p.lr_decay,   p.weight_decay, p.eps,
                               p.lr_pointer, p.grad_scale, p.found_inf,    p.maximize};
  return launch_tensor_list<Adagrad<T>>(fused_adagrad_kernel<T, kSmallArgumentBytes>,
                                        fused_adagrad_kernel<T, kLargeArgumentBytes>, scalars, p.tensors,
                                        p.count, p.launch, stream);
}

}  // namespace

Launched launch_fused_adagrad(const FusedAdagradParams& params, cudaStream_t stream) {
  return launch_for_dtype(params.dtype,
                          [&](auto zero) { return launch_dtype<decltype(zero)>(params, stream); });
}

}  // namespace aten_ext::cuda
