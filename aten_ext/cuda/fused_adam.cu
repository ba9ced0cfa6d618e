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
// kernel as its wheels are compiled (2.11 and later), so that turning the override on changes no bit of a
// result. The fused multiply-adds are written out: left to the compiler, they come and go with the code
// around.
//
// Shapes: every list has `count` tensors; tensor i of each is flat, [numel_i]. Bytes an element: reads
// p g m v, writes p m v = 7 * sizeof(T) (28 in fp32, 14 in bf16); amsgrad adds 2, grad_scale 1 * sizeof(T).
// About 20 FLOPs an element, of which one square root and two divisions: memory-bound. Ceiling on an H200:
// flat kernels of this pattern reach 4.16 TB/s in fp32 and 4.18 in bf16.
//
// Horizontal fusion. A list reaches the device in the kernel's arguments (a copy in constant memory, made by
// the launch itself: nothing to allocate, nothing to wait for, nothing that a CUDA graph could not replay).
// Each block updates one chunk of one tensor, one 16-byte vector of each operand a thread: a grid that large
// keeps more loads in flight than any loop in a grid that just fills the GPU. A block finds its tensor by
// binary search over the first block of each.
#include "cuda/fused_adam.h"

#include <algorithm>
#include <type_traits>

#include "cuda/device/vector.cuh"

namespace aten_ext::cuda {
namespace {

// ---- policy ------------------------------------------------------------------------------------------

// Kernel arguments: 4 KB always; 32,764 bytes with a driver for CUDA 12.1 or newer, on sm_70 or newer (which
// is every architecture that this is built for). A launch costs more with more arguments to copy, so short
// lists take the small struct.
constexpr int kSmallArgumentBytes = 4096;
constexpr int kLargeArgumentBytes = 32764;

// 256 threads of about 40 registers: 6 blocks an SM, 48 warps with 4 loads of 16 bytes each in flight.
constexpr int kThreads = 256;
// Lists of tensors smaller than a block's chunk: fewer threads that have nothing to do.
constexpr int kThreadsForSmallTensors = 64;

// ---- arguments ---------------------------------------------------------------------------------------

template <typename Op>
struct Scalars {
  Op lr, beta1, beta2, weight_decay, eps;
  const float* lr_pointer;
  const float* grad_scale;
  const float* found_inf;
  bool decoupled, maximize;
};

// `bytes` of kernel arguments hold as many tensors as fit.
template <typename Op, int lists, int bytes>
struct Arguments {
  static constexpr int kBytesPerTensor =
      lists * sizeof(void*) + sizeof(float*) + sizeof(int64_t) + sizeof(uint32_t);
  static constexpr int kCapacity = (bytes - sizeof(Scalars<Op>) - 2 * sizeof(uint64_t)) / kBytesPerTensor;

  Scalars<Op> scalars;
  void* data[lists][kCapacity];
  const float* step[kCapacity];
  int64_t numel[kCapacity];
  uint32_t first_block[kCapacity];  // of each tensor; 2^32 blocks are 2^42 elements
  int32_t count;
};

// ---- kernel ------------------------------------------------------------------------------------------

// The last tensor whose first block is not after `block`.
template <typename Args>
__device__ __forceinline__ int find_tensor(const Args& args, uint32_t block) {
  int low = 0;
  int high = args.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// What is the same for a whole tensor, computed once by each thread while its loads are under way.
template <typename Op>
struct TensorScalars {
  Op lr, step_size, sqrt_bias_correction2, grad_scale;
};

template <typename Op>
__device__ __forceinline__ TensorScalars<Op> tensor_scalars(const Scalars<Op>& s, const float* step_pointer) {
  const Op step = static_cast<Op>(*step_pointer);
  const Op lr = s.lr_pointer != nullptr ? static_cast<Op>(*s.lr_pointer) : s.lr;
  const Op bias_correction1 = 1 - pow(s.beta1, step);
  const Op bias_correction2 = 1 - pow(s.beta2, step);
  return {lr, lr / bias_correction1, sqrt(bias_correction2),
          s.grad_scale != nullptr ? static_cast<Op>(*s.grad_scale) : Op(1)};
}

// One element. `scaled_grad` is what is written back when there is a grad_scale.
template <bool amsgrad, typename Op>
__device__ __forceinline__ void update(Op& param, Op grad, Op& exp_avg, Op& exp_avg_sq, Op& max_exp_avg_sq,
                                       const Scalars<Op>& s, const TensorScalars<Op>& t) {
  if (s.maximize) {
    grad = -grad;
  }
  if (s.weight_decay != 0) {
    if (s.decoupled) {
      param = fma(-(t.lr * s.weight_decay), param, param);
    } else {
      grad = fma(param, s.weight_decay, grad);
    }
  }
  exp_avg = fma(s.beta1, exp_avg, fma(-s.beta1, grad, grad));
  exp_avg_sq = fma(s.beta2, exp_avg_sq, fma(-s.beta2, grad * grad, grad * grad));
  Op second_moment = exp_avg_sq;
  if (amsgrad) {
    // std::max, whose answer to a NaN differs from fmax's.
    max_exp_avg_sq = max_exp_avg_sq < exp_avg_sq ? exp_avg_sq : max_exp_avg_sq;
    second_moment = max_exp_avg_sq;
  }
  const Op denominator = sqrt(second_moment) / t.sqrt_bias_correction2 + s.eps;
  param -= t.step_size * exp_avg / denominator;
}

// Grid: one block for each chunk of blockDim.x vectors of each tensor.
template <typename T, bool amsgrad, int bytes>
__global__ __launch_bounds__(kThreads) void fused_adam_kernel(
    const __grid_constant__ Arguments<typename OpMath<T>::type, amsgrad ? 5 : 4, bytes> args) {
  using Op = typename OpMath<T>::type;
  constexpr int kLists = amsgrad ? 5 : 4;
  constexpr int kGrad = 1;
  constexpr int kVector = Vector<T>::kSize;
  const Scalars<Op>& s = args.scalars;

  const int tensor = find_tensor(args, blockIdx.x);
  const int64_t chunk = static_cast<int64_t>(blockDim.x) * kVector;
  const int64_t begin = (blockIdx.x - args.first_block[tensor]) * chunk;
  const int64_t left = args.numel[tensor] - begin;  // > 0
  T* data[kLists];
  bool vectors = left >= chunk || left % kVector == 0;
#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    data[list] = static_cast<T*>(args.data[list][tensor]) + begin;
    vectors = vectors && is_vector_aligned(data[list]);
  }

  // Loads first: what follows until their first use costs nothing.
  Vector<T> x[kLists];
  if (vectors) {
    const int64_t at = static_cast<int64_t>(threadIdx.x) * kVector;
    if (at >= left) {
      return;
    }
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
      x[list] = *reinterpret_cast<const Vector<T>*>(data[list] + at);
    }
  } else {
    // Misaligned, or the ragged end of a tensor: element by element, neighbours by neighbouring threads.
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int64_t at = threadIdx.x + static_cast<int64_t>(i) * blockDim.x;
        x[list].value[i] = at < left ? data[list][at] : from_op<T>(Op(0));
      }
    }
  }
  if (s.found_inf != nullptr && *s.found_inf == 1.0f) {
    return;
  }
  const TensorScalars<Op> t = tensor_scalars(s, args.step[tensor]);

#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    Op param = to_op(x[0].value[i]);
    Op grad = to_op(x[kGrad].value[i]);
    Op exp_avg = to_op(x[2].value[i]);
    Op exp_avg_sq = to_op(x[3].value[i]);
    Op max_exp_avg_sq = amsgrad ? to_op(x[kLists - 1].value[i]) : Op(0);
    if (s.grad_scale != nullptr) {
      grad /= t.grad_scale;
      x[kGrad].value[i] = from_op<T>(grad);
    }
    update<amsgrad>(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, s, t);
    x[0].value[i] = from_op<T>(param);
    x[2].value[i] = from_op<T>(exp_avg);
    x[3].value[i] = from_op<T>(exp_avg_sq);
    if (amsgrad) {
      x[kLists - 1].value[i] = from_op<T>(max_exp_avg_sq);
    }
  }

#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    if (list == kGrad && s.grad_scale == nullptr) {
      continue;
    }
    if (vectors) {
      *reinterpret_cast<Vector<T>*>(data[list] + static_cast<int64_t>(threadIdx.x) * kVector) = x[list];
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int64_t at = threadIdx.x + static_cast<int64_t>(i) * blockDim.x;
        if (at < left) {
          data[list][at] = x[list].value[i];
        }
      }
    }
  }
}

// ---- launch ------------------------------------------------------------------------------------------

bool large_arguments_allowed() {
#if CUDART_VERSION >= 12010
  static const bool allowed = [] {
    int driver = 0;
    return cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12010;
  }();
  return allowed;
#else
  return false;
#endif
}

template <typename T, bool amsgrad, int bytes>
cudaError_t launch_list(const FusedAdamParams& p, cudaStream_t stream) {
  using Op = typename OpMath<T>::type;
  constexpr int kLists = amsgrad ? 5 : 4;
  using Args = Arguments<Op, kLists, bytes>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");

  Args args;
  args.scalars = {static_cast<Op>(p.lr),
                  static_cast<Op>(p.beta1),
                  static_cast<Op>(p.beta2),
                  static_cast<Op>(p.weight_decay),
                  static_cast<Op>(p.eps),
                  p.lr_pointer,
                  p.grad_scale,
                  p.found_inf,
                  p.decoupled,
                  p.maximize};
  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    args.count = static_cast<int32_t>(std::min<int64_t>(p.count - from, Args::kCapacity));
    int64_t elements = 0;
    for (int i = 0; i < args.count; ++i) {
      elements += p.tensors[from + i].numel;
    }
    const int64_t full_chunk = int64_t{kThreads} * Vector<T>::kSize;
    const int threads = elements >= args.count * full_chunk / 2 ? kThreads : kThreadsForSmallTensors;
    const int64_t chunk = int64_t{threads} * Vector<T>::kSize;
    int64_t blocks = 0;
    for (int i = 0; i < args.count; ++i) {
      const FusedAdamTensor& tensor = p.tensors[from + i];
      for (int list = 0; list < kLists; ++list) {
        args.data[list][i] = tensor.data[list];
      }
      args.step[i] = tensor.step;
      args.numel[i] = tensor.numel;
      args.first_block[i] = static_cast<uint32_t>(blocks);
      blocks += (tensor.numel + chunk - 1) / chunk;
    }
    fused_adam_kernel<T, amsgrad, bytes><<<static_cast<uint32_t>(blocks), threads, 0, stream>>>(args);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <typename T, bool amsgrad>
cudaError_t launch_dtype(const FusedAdamParams& p, cudaStream_t stream) {
  using Small = Arguments<typename OpMath<T>::type, amsgrad ? 5 : 4, kSmallArgumentBytes>;
  if (p.count > Small::kCapacity && large_arguments_allowed()) {
    return launch_list<T, amsgrad, kLargeArgumentBytes>(p, stream);
  }
  return launch_list<T, amsgrad, kSmallArgumentBytes>(p, stream);
}

template <typename T>
cudaError_t launch_dtype(const FusedAdamParams& p, cudaStream_t stream) {
  return p.amsgrad ? launch_dtype<T, true>(p, stream) : launch_dtype<T, false>(p, stream);
}

}  // namespace

cudaError_t launch_fused_adam(const FusedAdamParams& params, cudaStream_t stream) {
  switch (params.dtype) {
    case AdamDtype::Float:
      return launch_dtype<float>(params, stream);
    case AdamDtype::Double:
      return launch_dtype<double>(params, stream);
    case AdamDtype::BFloat16:
      return launch_dtype<__nv_bfloat16>(params, stream);
    case AdamDtype::Half:
      return launch_dtype<__half>(params, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace aten_ext::cuda
