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
// keeps more loads in flight than any loop in a grid that just fills the GPU. 16-bit types have twice the
// elements for the same bytes, so for them what surrounds an element's arithmetic counts: hints instead of a
// search for the block's tensor, one power a thread instead of two, and five blocks an SM.
//
// Measured on an H200 (docs/benchmarks/), TB/s for 1.24 G parameters: upstream 3.5 (fp32), 2.8 (bf16); this
// 4.25 and 4.17. 1000 fp32 tensors of 1024: upstream 94 us, this 13.
#include "cuda/fused_adam.h"

#include <algorithm>
#include <atomic>
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

// Hints of where to look for a block's tensor: one for each of so many equal parts of the grid.
constexpr int kHintsInSmall = 64;
constexpr int kHintsInLarge = 256;

// fp64 with amsgrad needs 130 registers: 256 threads of that would leave an SM one block (8 warps), 128
// threads leave it three (12 warps).
template <typename T, bool amsgrad>
constexpr int kMaxThreads = std::is_same_v<T, double> && amsgrad ? 128 : 256;
// Blocks that must fit on an SM at once, for which the compiler keeps to 65536 / (threads * blocks)
// registers. Five, 40 warps with 4 loads of 16 bytes each in flight, is what 48 registers allow; with six the
// kernel spills (bf16: 20 % slower). A fifth list takes more registers, and fp64 arithmetic pairs of them.
// ptxas for sm_90a reports no spill.
template <typename T, bool amsgrad>
constexpr int kMinBlocksPerSM = std::is_same_v<T, double> ? (amsgrad ? 3 : 2)
                                : amsgrad                 ? 4
                                                          : 5;
// One vector of each operand a thread; in fp64 several one after the other, because a power in fp64 takes
// longer than the two elements of a vector (0.81 of upstream's speed with one, 1.03 with these).
template <typename T>
constexpr int kVectorsPerThread = std::is_same_v<T, double> ? 8 : 1;
// Lists of tensors smaller than a block's chunk take smaller blocks, down to one warp.
constexpr int kMinThreads = 32;

enum List { kParam, kGrad, kExpAvg, kExpAvgSq, kMaxExpAvgSq };

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
  static constexpr int kHints = bytes > kSmallArgumentBytes ? kHintsInLarge : kHintsInSmall;
  static constexpr int kBytesPerTensor =
      lists * sizeof(void*) + sizeof(float*) + sizeof(int64_t) + sizeof(uint32_t);
  static constexpr int kOtherBytes =
      sizeof(Scalars<Op>) + (kHints + 1) * sizeof(uint16_t) + 2 * sizeof(int32_t) + 3 * sizeof(int64_t);
  static constexpr int kCapacity = (bytes - kOtherBytes) / kBytesPerTensor;

  Scalars<Op> scalars;
  void* data[lists][kCapacity];
  const float* step[kCapacity];
  int64_t numel[kCapacity];
  uint32_t first_block[kCapacity];  // of each tensor; 2^31 blocks are more elements than any memory holds
  // hint[i] is the tensor of block i << hint_shift.
  uint16_t hint[kHints + 1];
  int32_t hint_shift;
};

// ---- kernel ------------------------------------------------------------------------------------------

// The last tensor whose first block is not after `block`: by binary search between two hints. Each step waits
// for a load from the arguments, and a search over all tensors has twice as many (bf16: 7 % of the time).
template <typename Args>
__device__ __forceinline__ int find_tensor(const Args& args, uint32_t block) {
  const uint32_t part = block >> args.hint_shift;
  int low = args.hint[part];
  int high = args.hint[part + 1] + 1;
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

// What is the same for a whole tensor, computed once by each thread while its loads are under way. The two
// powers are long (bf16: 10 % of the time when both were computed by all): even lanes compute one, odd lanes
// the other. All lanes must be here.
template <typename Op>
struct TensorScalars {
  Op lr, step_size, sqrt_bias_correction2, grad_scale;
};

template <typename Op>
__device__ __forceinline__ TensorScalars<Op> tensor_scalars(const Scalars<Op>& s, const float* step_pointer) {
  const Op step = static_cast<Op>(*step_pointer);
  const Op lr = s.lr_pointer != nullptr ? static_cast<Op>(*s.lr_pointer) : s.lr;
  const Op bias_correction = 1 - pow(threadIdx.x % 2 == 0 ? s.beta1 : s.beta2, step);
  const Op bias_correction1 = __shfl_sync(0xffffffff, bias_correction, 0);
  const Op bias_correction2 = __shfl_sync(0xffffffff, bias_correction, 1);
  return {lr, lr / bias_correction1, sqrt(bias_correction2),
          s.grad_scale != nullptr ? static_cast<Op>(*s.grad_scale) : Op(1)};
}

// One element; `grad` is unscaled already.
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

// `count` elements of each operand, in registers.
template <typename T, bool amsgrad, int count>
__device__ __forceinline__ void update_all(T (&x)[amsgrad ? 5 : 4][count], const Scalars<MathType<T>>& s,
                                           const TensorScalars<MathType<T>>& t) {
  using Op = MathType<T>;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    Op param = to_op(x[kParam][i]);
    Op grad = to_op(x[kGrad][i]);
    Op exp_avg = to_op(x[kExpAvg][i]);
    Op exp_avg_sq = to_op(x[kExpAvgSq][i]);
    Op max_exp_avg_sq = Op(0);
    if constexpr (amsgrad) {
      max_exp_avg_sq = to_op(x[kMaxExpAvgSq][i]);
    }
    if (s.grad_scale != nullptr) {
      grad /= t.grad_scale;
      x[kGrad][i] = from_op<T>(grad);
    }
    update<amsgrad>(param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq, s, t);
    x[kParam][i] = from_op<T>(param);
    x[kExpAvg][i] = from_op<T>(exp_avg);
    x[kExpAvgSq][i] = from_op<T>(exp_avg_sq);
    if constexpr (amsgrad) {
      x[kMaxExpAvgSq][i] = from_op<T>(max_exp_avg_sq);
    }
  }
}

// The chunk of one block.
template <typename T, bool amsgrad, typename Args>
__device__ __forceinline__ void update_chunk(const Args& args) {
  using Op = MathType<T>;
  constexpr int kLists = amsgrad ? 5 : 4;
  constexpr int kVector = Vector<T>::kSize;
  const Scalars<Op>& s = args.scalars;

  const int tensor = find_tensor(args, blockIdx.x);
  const uint32_t chunk = blockDim.x * kVector * kVectorsPerThread<T>;
  const int64_t begin = static_cast<int64_t>(blockIdx.x - args.first_block[tensor]) * chunk;
  const int64_t left = args.numel[tensor] - begin;  // > 0
  const uint32_t count = left < chunk ? static_cast<uint32_t>(left) : chunk;
  T* data[kLists];
  bool vectors = count % kVector == 0;
#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    data[list] = static_cast<T*>(args.data[list][tensor]) + begin;
    vectors = vectors && is_vector_aligned(data[list]);
  }
  const auto is_written = [&s](int list) { return list != kGrad || s.grad_scale != nullptr; };

  if (vectors) {
    uint32_t at = threadIdx.x * kVector;
    // Loads first: what follows until their first use costs nothing.
    T x[kLists][kVector];
    if (at < count) {
#pragma unroll
      for (int list = 0; list < kLists; ++list) {
        load_vector(x[list], data[list] + at);
      }
    }
    if (s.found_inf != nullptr && *s.found_inf == 1.0f) {
      return;
    }
    const TensorScalars<Op> t = tensor_scalars(s, args.step[tensor]);
    while (at < count) {
      update_all<T, amsgrad>(x, s, t);
#pragma unroll
      for (int list = 0; list < kLists; ++list) {
        if (is_written(list)) {
          store_vector(data[list] + at, x[list]);
        }
      }
      if constexpr (kVectorsPerThread<T> == 1) {
        return;
      }
      at += blockDim.x * kVector;
      if (at < count) {
#pragma unroll
        for (int list = 0; list < kLists; ++list) {
          load_vector(x[list], data[list] + at);
        }
      }
    }
    return;
  }

  // Misaligned, or the ragged end of a tensor: element by element, neighbours by neighbouring threads.
  if (s.found_inf != nullptr && *s.found_inf == 1.0f) {
    return;
  }
  const TensorScalars<Op> t = tensor_scalars(s, args.step[tensor]);
  constexpr int kAtOnce = 4;
  for (uint32_t from = threadIdx.x; from < count; from += kAtOnce * blockDim.x) {
    T x[kLists][kAtOnce];
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + i * blockDim.x;
        x[list][i] = at < count ? data[list][at] : from_op<T>(Op(0));
      }
    }
    update_all<T, amsgrad>(x, s, t);
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + i * blockDim.x;
        if (is_written(list) && at < count) {
          data[list][at] = x[list][i];
        }
      }
    }
  }
}

// Grid: one block for each chunk of blockDim.x vectors of each tensor.
//
// The launches of one list overlap where the GPU can (sm_90: programmatic dependent launch): each lets the
// next start as soon as its own blocks have, which is safe because they share no tensor, and none ends before
// the one before it has ended, so that what follows the last of them follows them all.
template <typename T, bool amsgrad, int bytes>
__global__ __launch_bounds__(kMaxThreads<T, amsgrad>, kMinBlocksPerSM<T, amsgrad>) void fused_adam_kernel(
    const __grid_constant__ Arguments<MathType<T>, amsgrad ? 5 : 4, bytes> args) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  update_chunk<T, amsgrad>(args);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
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

// Whether a kernel's launches after a list's first may overlap with the one before, on each device. They may
// where the code that runs there waits at its end, which it does when it was compiled for sm_90 or newer. The
// device's own capability does not say: it may run older PTX, compiled for it at load, which waits for
// nothing.
class OverlapAllowed {
 public:
  cudaError_t operator()(const void* kernel, bool& allowed) {
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
      return error;
    }
    std::atomic<int>* ptx_version = device < kDevices ? &ptx_version_[device] : nullptr;
    int version = ptx_version != nullptr ? ptx_version->load(std::memory_order_relaxed) : 0;
    if (version == 0) {
      cudaFuncAttributes attributes{};
      if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel); error != cudaSuccess) {
        return error;
      }
      version = attributes.ptxVersion;
      if (ptx_version != nullptr) {
        ptx_version->store(version, std::memory_order_relaxed);
      }
    }
    allowed = version >= 90;
    return cudaSuccess;
  }

 private:
  static constexpr int kDevices = 64;            // on further ones it is asked each time
  std::atomic<int> ptx_version_[kDevices] = {};  // 0: not asked yet
};

// Threads a block: as many as tensors of this mean size keep busy.
int choose_threads(int64_t elements, int tensors, int elements_per_thread, int most) {
  int threads = kMinThreads;
  while (threads < most && int64_t{threads} * elements_per_thread * tensors < elements) {
    threads *= 2;
  }
  return threads;
}

// Fills the part of `args` that says which tensors there are and returns the size of the grid.
template <int lists, typename Args>
int64_t describe_tensors(Args& args, const FusedAdamTensor* tensors, int count, int64_t chunk) {
  int64_t blocks = 0;
  for (int i = 0; i < count; ++i) {
    for (int list = 0; list < lists; ++list) {
      args.data[list][i] = tensors[i].data[list];
    }
    args.step[i] = tensors[i].step;
    args.numel[i] = tensors[i].numel;
    args.first_block[i] = static_cast<uint32_t>(blocks);
    blocks += (tensors[i].numel + chunk - 1) / chunk;
  }
  args.hint_shift = 0;
  while (blocks >> args.hint_shift >= Args::kHints) {
    ++args.hint_shift;
  }
  int tensor = 0;
  for (int i = 0; i <= Args::kHints; ++i) {
    while (tensor + 1 < count && args.first_block[tensor + 1] <= int64_t{i} << args.hint_shift) {
      ++tensor;
    }
    args.hint[i] = static_cast<uint16_t>(tensor);
  }
  return blocks;
}

template <typename T, bool amsgrad, int bytes>
cudaError_t launch_list(const FusedAdamParams& p, cudaStream_t stream) {
  using Op = MathType<T>;
  constexpr int kLists = amsgrad ? 5 : 4;
  using Args = Arguments<Op, kLists, bytes>;
  constexpr int kElementsPerThread = Vector<T>::kSize * kVectorsPerThread<T>;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  static_assert(Args::kCapacity <= UINT16_MAX, "a hint is 16 bits");

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
  bool overlap = false;
  if (p.count > Args::kCapacity) {
    static OverlapAllowed overlap_allowed;
    const void* kernel = reinterpret_cast<const void*>(fused_adam_kernel<T, amsgrad, bytes>);
    if (const cudaError_t error = overlap_allowed(kernel, overlap); error != cudaSuccess) {
      return error;
    }
  }
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;

  for (int64_t from = 0; from < p.count; from += Args::kCapacity) {
    const int count = static_cast<int>(std::min<int64_t>(p.count - from, Args::kCapacity));
    int64_t elements = 0;
    for (int i = 0; i < count; ++i) {
      elements += p.tensors[from + i].numel;
    }
    const int threads = choose_threads(elements, count, kElementsPerThread, kMaxThreads<T, amsgrad>);
    const int64_t blocks =
        describe_tensors<kLists>(args, p.tensors + from, count, int64_t{threads} * kElementsPerThread);
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(blocks));
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = stream;
    config.attrs = &overlaps;
    config.numAttrs = overlap && from > 0 ? 1 : 0;
    if (const cudaError_t error = cudaLaunchKernelEx(&config, fused_adam_kernel<T, amsgrad, bytes>, args);
        error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

template <typename T, bool amsgrad>
cudaError_t launch_dtype(const FusedAdamParams& p, cudaStream_t stream) {
  using Small = Arguments<MathType<T>, amsgrad ? 5 : 4, kSmallArgumentBytes>;
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
