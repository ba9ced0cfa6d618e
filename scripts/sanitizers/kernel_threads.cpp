// The fused Adam kernel for CPUs, its list shared out among std::threads at every possible place, without
// torch.
//
// at::parallel_for runs on libgomp, which is not instrumented: ThreadSanitizer cannot see its barriers and
// would report races that are none. Here the same kernel runs on threads that it can see, so a report means
// that two parts of a list touch the same memory. The results are held to those of one thread, bit by bit.
//
//   c++ -std=c++20 -O1 -g -fsanitize=thread -pthread -mavx2 -mfma -mf16c -ffp-contract=off
//       -DCPU_CAPABILITY=AVX2 -DCPU_CAPABILITY_AVX2 -I aten_ext -isystem <torch>/include
//       kernel_threads.cpp aten_ext/ops/optimizer/cpu/fused_adam_kernel.cpp -lc10
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "ops/optimizer/cpu/fused_adam.h"

namespace {

using aten_ext::Dtype;
using aten_ext::cpu::FusedAdamParams;
using aten_ext::cpu::kAdamLists;

// A vector, a cache line and one element either side of them, and tensors that several threads share.
const std::vector<int64_t> kSizes = {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 257, 1000, 1003};

// Five lists in memory of exactly their size, so that AddressSanitizer sees each byte too many.
struct Lists {
  std::vector<std::vector<std::vector<unsigned char>>> memory;
  aten_ext::cpu::TensorListOf<kAdamLists> list;

  Lists(int64_t element_size, bool half) {
    std::mt19937 random(7);
    memory.resize(kSizes.size());
    for (size_t i = 0; i < kSizes.size(); ++i) {
      for (int list = 0; list < 5; ++list) {
        std::vector<unsigned char>& bytes = memory[i].emplace_back(kSizes[i] * element_size);
        for (int64_t at = 0; at < kSizes[i]; ++at) {
          const double value = 0.25 + static_cast<double>(random() % 1024) / 1024;
          unsigned char* to = bytes.data() + at * element_size;
          if (half) {  // 1.0 to 2.0 in fp16, other numbers as small in bf16
            const uint16_t bits = static_cast<uint16_t>(0x3c00 + random() % 0x80);
            std::memcpy(to, &bits, 2);
          } else if (element_size == 4) {
            const float single = static_cast<float>(value);
            std::memcpy(to, &single, 4);
          } else {
            std::memcpy(to, &value, 8);
          }
        }
      }
      auto& tensor = list.add(kSizes[i], element_size);
      for (int which = 0; which < kAdamLists; ++which) {
        tensor.data[which] = memory[i][which].data();
      }
      tensor.step = static_cast<float>(1 + i % 3);
    }
  }
};

FusedAdamParams make_params(const Lists& lists, Dtype dtype, bool amsgrad, bool scale) {
  FusedAdamParams p{};
  p.tensors = lists.list.tensors.data();
  p.count = static_cast<int64_t>(lists.list.tensors.size());
  p.dtype = dtype;
  p.decoupled = amsgrad;
  p.amsgrad = amsgrad;
  p.maximize = scale;
  p.has_grad_scale = scale;
  p.grad_scale = scale ? 2.0f : 1.0f;
  p.lr = 1e-3;
  p.beta1 = 0.9;
  p.beta2 = 0.999;
  p.weight_decay = 0.01;
  p.eps = 1e-8;
  return p;
}

bool check(Dtype dtype, int64_t element_size, bool half, bool amsgrad, bool scale, int threads) {
  Lists together(element_size, half);
  Lists apart(element_size, half);
  aten_ext::cpu::AVX2::fused_adam(make_params(together, dtype, amsgrad, scale), 0, together.list.units);
  const FusedAdamParams p = make_params(apart, dtype, amsgrad, scale);
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t) {
    const int64_t begin = apart.list.units * t / threads;
    const int64_t end = apart.list.units * (t + 1) / threads;
    if (begin < end) {
      running.emplace_back([p, begin, end] { aten_ext::cpu::AVX2::fused_adam(p, begin, end); });
    }
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  return together.memory == apart.memory;
}

}  // namespace

int main() {
  struct Case {
    Dtype dtype;
    int64_t size;
    bool half;
  };
  const Case cases[] = {{Dtype::Float, 4, false},
                        {Dtype::Double, 8, false},
                        {Dtype::BFloat16, 2, true},
                        {Dtype::Half, 2, true}};
  for (const Case& d : cases) {
    for (const bool amsgrad : {false, true}) {
      for (const bool scale : {false, true}) {
        for (const int threads : {2, 3, 5, 16}) {
          if (!check(d.dtype, d.size, d.half, amsgrad, scale, threads)) {
            std::printf("dtype %d, amsgrad %d, scale %d, %d threads: not the result of one thread\n",
                        static_cast<int>(d.dtype), amsgrad, scale, threads);
            return 1;
          }
        }
      }
    }
  }
  std::puts("kernel: every way of sharing out a list gives the same bits");
  return 0;
}
