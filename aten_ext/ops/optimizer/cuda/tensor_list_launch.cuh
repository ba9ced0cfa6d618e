// The launches of a fused optimizer step, host side: as few as the size of kernel arguments allows, no
// synchronisation, no allocation. See ops/optimizer/cuda/tensor_list.cuh for what an Optimizer is.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <type_traits>

#include "core/dtype.h"
#include "core/launch_sequence.h"
#include "core/math.h"
#include "ops/optimizer/cuda/tensor_list.cuh"

namespace aten_ext::cuda {
namespace {

// Lists of tensors smaller than a block's chunk take smaller blocks, down to one warp.
constexpr int kMinThreads = 32;

// Threads a block: as many as tensors of this mean size keep busy.
constexpr int choose_threads(int64_t elements, int tensors, int elements_per_thread, int most) {
  int threads = kMinThreads;
  while (threads < most && int64_t{threads} * elements_per_thread * tensors < elements) {
    threads *= 2;
  }
  return threads;
}

// How a launch cuts its tensors into chunks: of `threads` threads, and so many elements of each.
struct Cut {
  int threads, elements;
};

// At least as many blocks as this comes to.
constexpr int64_t count_blocks(int64_t elements, int tensors, int64_t chunk) {
  return std::max<int64_t>(tensors, elements / chunk);
}

// A thread takes up to `most` elements. Where that leaves multiprocessors without a block, all the time there
// is is a block's way through its chunk: then a thread takes no more than it has under way at once, and each
// tensor is one block if one can hold the `largest`.
constexpr Cut choose_cut(int64_t elements, int64_t largest, int tensors, int most, int most_threads,
                         int multiprocessors) {
  const int threads = choose_threads(elements, tensors, most, most_threads);
  if (count_blocks(elements, tensors, int64_t{threads} * most) >= multiprocessors) {
    return {threads, most};
  }
  constexpr int kTurn = 2;  // blocks that a multiprocessor has room for, whatever the optimizer
  const int at_once = std::min(kElementsAtOnce, most);
  if (tensors <= multiprocessors && largest <= int64_t{most_threads} * at_once) {
    return {choose_threads(largest, 1, at_once, most_threads), at_once};
  }
  Cut cut{choose_threads(elements, tensors, at_once, most_threads), at_once};
  while (cut.elements < most &&
         count_blocks(elements, tensors, int64_t{cut.threads} * cut.elements) > kTurn * multiprocessors) {
    cut.elements *= 2;
  }
  return cut;
}

constexpr bool cuts(Cut cut, int threads, int elements) {
  return cut.threads == threads && cut.elements == elements;
}
// Adam in fp64 on 132 multiprocessors: a long list, and a short one.
static_assert(cuts(choose_cut(100'000'000, 20'000'000, 10, 16, 256, 132), 256, 16));
static_assert(cuts(choose_cut(5400, 3906, 6, 16, 256, 132), 256, 4));
// A list that is short for a thread's four elements and long for its GPU.
static_assert(cuts(choose_cut(400'000, 400'000, 1, 16, 256, 132), 256, 8));
// SGD in fp64 has two elements a thread at most.
static_assert(cuts(choose_cut(5000, 5000, 1, 2, 256, 132), 256, 2));
// Small tensors, the largest of which fills half a block.
static_assert(cuts(choose_cut(700, 500, 4, 8, 256, 132), 128, 4));

// Fills the part of `args` that says which tensors there are and returns the size of the grid.
template <typename Optimizer, typename Args, int lists>
int64_t describe_tensors(Args& args, const FlatTensors<lists>* tensors, int count, int64_t chunk) {
  static_assert(Optimizer::kLists <= lists, "a list that the rows do not have");
  int64_t blocks = 0;
  bool is_tensor_of_block = true;
  for (int i = 0; i < count; ++i) {
    for (int list = 0; list < Optimizer::kLists; ++list) {
      args.data[list][i] = tensors[i].data[list];
    }
    args.step[Optimizer::kSteps ? i : 0] = tensors[i].step;
    args.numel[i] = tensors[i].numel;
    args.first_block[i] = static_cast<uint32_t>(blocks);
    const int64_t of_tensor = ceil_div(tensors[i].numel, chunk);
    is_tensor_of_block = is_tensor_of_block && of_tensor == 1;
    blocks += of_tensor;
  }
  if (is_tensor_of_block || count == 1) {
    args.hint_shift = is_tensor_of_block ? kTensorOfBlock : kOneTensor;
    return blocks;
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

template <typename Optimizer, int bytes, int lists>
Launched launch_with_arguments(void (*kernel)(ListArguments<Optimizer, bytes>),
                               const typename Optimizer::Scalars& scalars, const FlatTensors<lists>* tensors,
                               int64_t count_of_all, const ListLaunch& how, cudaStream_t stream) {
  using Args = ListArguments<Optimizer, bytes>;
  constexpr int kMost = Vector<typename Optimizer::Element>::kSize * Optimizer::kVectorsPerThread;
  static_assert(sizeof(Args) <= bytes, "kernel arguments too large");
  static_assert(std::is_trivially_copyable_v<Args>, "kernel arguments are copied as bytes");
  static_assert(Args::kCapacity <= UINT16_MAX, "a hint is 16 bits");
  static_assert(sizeof(Args) - sizeof(Args::first_block) <= kIndexedArgumentBytes, "blocks begin too late");

  Args args;
  args.scalars = scalars;
  LaunchSequence sequence(stream, how.overlaps);
  for (int64_t from = 0; from < count_of_all; from += Args::kCapacity) {
    const int count = static_cast<int>(std::min<int64_t>(count_of_all - from, Args::kCapacity));
    int64_t elements = 0;
    int64_t largest = 0;
    for (int i = 0; i < count; ++i) {
      elements += tensors[from + i].numel;
      largest = std::max(largest, tensors[from + i].numel);
    }
    const Cut cut = choose_cut(elements, largest, count, kMost, Optimizer::kMaxThreads, how.multiprocessors);
    args.elements = static_cast<uint16_t>(cut.elements);
    const int64_t blocks =
        describe_tensors<Optimizer>(args, tensors + from, count, int64_t{cut.threads} * cut.elements);
    if (const cudaError_t error = sequence.launch(kernel, blocks, cut.threads, args); error != cudaSuccess) {
      return {error, sequence.launches() - 1};
    }
  }
  return {cudaSuccess, sequence.launches()};
}

// Queues the step on `stream` of the current device. The two kernels are one, for either size of arguments:
// a short list takes the small one.
template <typename Optimizer, int lists>
Launched launch_tensor_list(void (*small)(ListArguments<Optimizer, kSmallArgumentBytes>),
                            void (*large)(ListArguments<Optimizer, kLargeArgumentBytes>),
                            const typename Optimizer::Scalars& scalars, const FlatTensors<lists>* tensors,
                            int64_t count, const ListLaunch& how, cudaStream_t stream) {
  if (count > ListArguments<Optimizer, kSmallArgumentBytes>::kCapacity &&
      how.argument_bytes >= kLargeArgumentBytes) {
    return launch_with_arguments<Optimizer, kLargeArgumentBytes>(large, scalars, tensors, count, how, stream);
  }
  return launch_with_arguments<Optimizer, kSmallArgumentBytes>(small, scalars, tensors, count, how, stream);
}

}  // namespace

// launch(T{}) for the T that `dtype` names, one of four.
template <typename Launch>
Launched launch_for_dtype(Dtype dtype, const Launch& launch) {
  switch (dtype) {
    case Dtype::Double:
      return launch(double{});
    case Dtype::BFloat16:
      return launch(__nv_bfloat16{});
    case Dtype::Half:
      return launch(__half{});
    default:
      return launch(float{});
  }
}

}  // namespace aten_ext::cuda
