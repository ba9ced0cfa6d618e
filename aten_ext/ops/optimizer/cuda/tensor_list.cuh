// The kernel of every fused optimizer step: a list of tensors in a kernel's arguments, and one block's work
// on it. docs/kernels/optimizer.md says why it is built like this, and what was measured.
//
// An optimizer is a type with
//
//   using Element = ...;                          dtype of the tensors
//   using Scalars = ...;                          what is the same for a launch; has the members
//       const float* grad_scale, * found_inf      [1] each on the device, or nullptr
//   static constexpr int kLists;                  lists that it reads: parameters, gradients, states
//   static constexpr bool kSteps;                 whether it needs each tensor's count of steps
//   static constexpr int kVectorsPerThread, kMaxThreads;      its policy
//   static PerTensor prepare(const Scalars&, const OfTensor&);
//       what is the same for a tensor, computed by every thread; has the member grad_scale. All lanes of a
//       warp come here.
//   static void update(Op (&x)[kLists], const Scalars&, const PerTensor&);
//       one element of each list, in place; the gradient is unscaled already
#pragma once

#include <cstdint>

#include "core/launch_sequence.h"
#include "device/search.cuh"
#include "device/vector.cuh"
#include "ops/optimizer/cuda/tensor_list.h"

namespace aten_ext::cuda {

// Hints of where to look for a block's tensor: one for each of so many equal parts of the grid.
constexpr int kHintsInSmall = 64;
constexpr int kHintsInLarge = 256;

// Elements of a list that a thread has under way where they are no vectors, or where there are few.
constexpr int kElementsAtOnce = 4;
// PyTorch's kernel loads and stores a tensor by so many elements where all of it can be.
constexpr int kUpstreamsVector = 4;
static_assert(kElementsAtOnce == kUpstreamsVector, "one test of alignment answers for both");

// Values of hint_shift where nothing is to be found: block i is all of tensor i, or there is one tensor. A
// block of a short list then waits for two lines of the arguments less, one after the other.
constexpr int kTensorOfBlock = -1;
constexpr int kOneTensor = -2;

// `bytes` of kernel arguments hold as many tensors as fit.
template <typename Optimizer, int bytes>
struct ListArguments {
  using Scalars = typename Optimizer::Scalars;
  static constexpr int kLists = Optimizer::kLists;
  static constexpr int kHints = bytes > kSmallArgumentBytes ? kHintsInLarge : kHintsInSmall;
  static constexpr int kBytesPerTensor =
      (kLists + Optimizer::kSteps) * sizeof(void*) + sizeof(int64_t) + sizeof(uint32_t);
  static constexpr int kOtherBytes = sizeof(Scalars) + (kHints + 2) * sizeof(uint16_t) + 2 * sizeof(int32_t) +
                                     (Optimizer::kSteps ? 3 : 4) * sizeof(int64_t);
  static constexpr int kCapacity = (bytes - kOtherBytes) / kBytesPerTensor;

  // What every block reads first stands together, because it waits for each line of the arguments that it is
  // the first to touch.
  Scalars scalars;
  int32_t hint_shift;         // or kTensorOfBlock, kOneTensor
  uint16_t elements;          // of each list that a thread takes
  uint16_t hint[kHints + 1];  // hint[i] is the tensor of block i << hint_shift
  void* data[kLists][kCapacity];
  const float* step[Optimizer::kSteps ? kCapacity : 1];
  int64_t numel[kCapacity];
  uint32_t first_block[kCapacity];  // of each tensor; 2^31 blocks are more elements than any memory holds
};

// The last tensor whose first block is not after `block`: by binary search between two hints. Each step waits
// for a load from the arguments, and a search over all tensors has twice as many.
template <typename Args>
__device__ __forceinline__ int find_tensor(const Args& args, uint32_t block) {
  const uint32_t part = block >> args.hint_shift;
  return find_last_begin(args.first_block, block, args.hint[part], args.hint[part + 1] + 1);
}

// `count` elements of each list, in registers.
template <typename Optimizer, int count, typename PerTensor>
__device__ __forceinline__ void update_all(typename Optimizer::Element (&x)[Optimizer::kLists][count],
                                           const typename Optimizer::Scalars& s, const PerTensor& t) {
  using T = typename Optimizer::Element;
  constexpr int kLists = Optimizer::kLists;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    MathType<T> values[kLists];
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
      values[list] = to_op(x[list][i]);
    }
    if (s.grad_scale != nullptr) {
      values[kGrad] /= t.grad_scale;
      x[kGrad][i] = from_op<T>(values[kGrad]);
    }
    Optimizer::update(values, s, t);
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
      if (list != kGrad) {
        x[list][i] = from_op<T>(values[list]);
      }
    }
  }
}

// What prepare() is told of a tensor.
struct OfTensor {
  const float* step;          // nullptr if no steps are needed
  bool is_upstreams_vectors;  // PyTorch's kernel takes it by kUpstreamsVector
};

// Whether the kernel writes a list.
template <typename Scalars>
__device__ __forceinline__ bool is_written(const Scalars& s, int list) {
  return list != kGrad || s.grad_scale != nullptr;
}

template <typename Scalars>
__device__ __forceinline__ bool is_skipped(const Scalars& s) {
  return s.found_inf != nullptr && *s.found_inf == 1.0f;
}

// A chunk of whole groups of `kWidth` elements, each one load and one store. Loads come first: what follows
// until their first use costs nothing.
template <typename Optimizer, int kWidth>
__device__ __forceinline__ void update_groups(typename Optimizer::Element* const (&data)[Optimizer::kLists],
                                              uint32_t count, const typename Optimizer::Scalars& s,
                                              const OfTensor& tensor) {
  constexpr int kLists = Optimizer::kLists;
  typename Optimizer::Element x[kLists][kWidth];
  const auto load = [&](uint32_t at) {
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
      load_elements(x[list], data[list] + at);
    }
  };
  uint32_t at = threadIdx.x * kWidth;
  if (at < count) {
    load(at);
  }
  if (is_skipped(s)) {
    return;
  }
  const auto t = Optimizer::prepare(s, tensor);
  while (at < count) {
    update_all<Optimizer>(x, s, t);
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
      if (is_written(s, list)) {
        store_elements(data[list] + at, x[list]);
      }
    }
    // The most that a thread takes of a chunk: there is no second group.
    if constexpr (kWidth == Vector<typename Optimizer::Element>::kSize * Optimizer::kVectorsPerThread) {
      return;
    }
    at += blockDim.x * kWidth;
    if (at < count) {
      load(at);
    }
  }
}

// The chunk of one block.
template <typename Optimizer, typename Args>
__device__ __forceinline__ void update_chunk(const Args& args) {
  using T = typename Optimizer::Element;
  constexpr int kLists = Optimizer::kLists;
  constexpr int kVector = Vector<T>::kSize;
  const typename Optimizer::Scalars& s = args.scalars;

  const uint32_t chunk = blockDim.x * args.elements;
  int tensor = 0;
  int64_t begin = 0;
  if (args.hint_shift == kTensorOfBlock) {
    tensor = static_cast<int>(blockIdx.x);
  } else if (args.hint_shift == kOneTensor) {
    begin = static_cast<int64_t>(blockIdx.x) * chunk;
  } else {
    tensor = find_tensor(args, blockIdx.x);
    begin = static_cast<int64_t>(blockIdx.x - args.first_block[tensor]) * chunk;
  }
  const int64_t left = args.numel[tensor] - begin;  // > 0
  const uint32_t count = left < chunk ? static_cast<uint32_t>(left) : chunk;
  T* data[kLists];
  bool vectors = count % kVector == 0 && args.elements >= kVector;
  bool halves = count % kElementsAtOnce == 0;
#pragma unroll
  for (int list = 0; list < kLists; ++list) {
    data[list] = static_cast<T*>(args.data[list][tensor]) + begin;
    vectors = vectors && is_vector_aligned(data[list]);
    halves = halves && are_aligned<kElementsAtOnce>(data[list]);
  }
  const OfTensor of_tensor{args.step[Optimizer::kSteps ? tensor : 0],
                           halves && args.numel[tensor] % kUpstreamsVector == 0};
  if (vectors) {
    update_groups<Optimizer, kVector>(data, count, s, of_tensor);
    return;
  }
  if constexpr (kVector > kElementsAtOnce) {
    if (halves) {
      update_groups<Optimizer, kElementsAtOnce>(data, count, s, of_tensor);
      return;
    }
  }

  // Misaligned, or the ragged end of a tensor: element by element, neighbours by neighbouring threads.
  constexpr int kAtOnce = kElementsAtOnce;
  T x[kLists][kAtOnce];
  const auto load = [&](uint32_t from) {
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + i * blockDim.x;
        x[list][i] = at < count ? data[list][at] : from_op<T>(MathType<T>(0));
      }
    }
  };
  // 16-bit elements have a register each: with their loads under way Adam's powers would spill.
  constexpr bool kIsAhead = sizeof(T) > 2;
  uint32_t from = threadIdx.x;
  if constexpr (kIsAhead) {
    load(from);
  }
  if (is_skipped(s)) {
    return;
  }
  const auto t = Optimizer::prepare(s, of_tensor);
  while (from < count) {
    if constexpr (!kIsAhead) {
      load(from);
    }
    update_all<Optimizer>(x, s, t);
#pragma unroll
    for (int list = 0; list < kLists; ++list) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const uint32_t at = from + i * blockDim.x;
        if (is_written(s, list) && at < count) {
          data[list][at] = x[list][i];
        }
      }
    }
    from += kAtOnce * blockDim.x;
    if (kIsAhead && from < count) {
      load(from);
    }
  }
}

// Grid: one block for each chunk of blockDim.x * `elements` of each tensor.
//
// The launches of one list overlap where the GPU can (sm_90: programmatic dependent launch): each lets the
// next start as soon as its own blocks have, which is safe because they share no tensor, and none ends before
// the one before it has ended, so that what follows the last of them follows them all.
template <typename Optimizer, typename Args>
__device__ __forceinline__ void update_list(const Args& args) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
  update_chunk<Optimizer>(args);
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace aten_ext::cuda
