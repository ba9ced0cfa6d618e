#include "ops/rnn/cpu/product.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ops/rnn/cpu/call.h"

namespace aten_ext::cpu {
namespace {

#if defined(__x86_64__)
// AMD's family of processors, CPUID's name for a design; 0 for others' processors.
unsigned amd_family() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__builtin_cpu_is("amd") == 0 || __get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) {
    return 0;
  }
  const unsigned base = eax >> 8 & 0xf;
  return base == 0xf ? base + (eax >> 20 & 0xff) : base;
}

// The first whose units are as wide as AVX-512: Zen 5. Zen 4 runs such an instruction in two halves.
constexpr unsigned kWholeAvx512 = 0x1a;
#endif

// MKL, which at::mm goes to, keeps its AVX-512 code for Intel's processors; oneDNN asks for the instruction
// set alone. On a Zen 5 it multiplies twice as fast. On a Zen 4 a whole product is 1.1 to 1.7 times as fast,
// but in parts (SumParts) layers took as long or up to 8 % longer, and gradients of weights, sums of short
// parts, have 0.3 to 0.8 of MKL's rate on two threads.
bool prefers_onednn() {
#if defined(__x86_64__)
  static const bool known = at::get_cpu_capability() == "AVX512" && amd_family() >= kWholeAvx512;
  return known;
#else
  return false;
#endif
}

// oneDNN makes a kernel for each new shape, in about 0.3 ms. Fewer multiply-adds than these take less.
constexpr int64_t kWorthKernel = 10'000'000;

// A part with fewer multiply-adds than these costs oneDNN more to begin than it saves.
constexpr int64_t kWorthPart = 2'000'000;

// With fewer rows than these a product is bound by reading its weight, which oneDNN copies, and the gradient
// of a weight by writing it.
constexpr int64_t kWorthRows = 64;

const std::optional<c10::OperatorHandle>& onednn_linear(bool adds) {
  static const auto plain = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  static const auto adding = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", "binary"});
  return adds ? adding : plain;
}

bool goes_to_onednn(int64_t products) {
  return products >= kWorthKernel && prefers_onednn() && onednn_linear(false) && onednn_linear(true) &&
         at::globalContext().userEnabledMkldnn() && !has_less_precision();
}

// oneDNN has no kernel but its reference, a thousand times slower, for a second operand with gaps.
at::Tensor without_gaps(const at::Tensor& w) {
  return w.is_contiguous() || w.t().is_contiguous() ? w : w.contiguous();
}

// x w^T + bias, or + sum where that is defined.
at::Tensor onednn_product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                          const at::Tensor& sum) {
  const c10::IValue b = bias.defined() ? c10::IValue(bias) : c10::IValue();
  torch::jit::Stack stack;
  if (sum.defined()) {
    stack = {x, sum, without_gaps(w), b, std::string("add")};
  } else {
    stack = {
        x, without_gaps(w), b, std::string("none"), c10::List<std::optional<at::Scalar>>(), std::string()};
  }
  onednn_linear(sum.defined())->callBoxed(&stack);
  return std::move(stack[0]).toTensor();
}

// Whether upstream's product of it would be in less than fp32. There is a switch, but it is everyone's; fp64
// has none.
bool is_lowered(const at::Tensor& factor) {
  return factor.scalar_type() == at::kFloat && has_less_precision();
}

at::Tensor in_double(const at::Tensor& a, const at::Tensor& b) {
  return at::mm(a.to(at::kDouble), b.to(at::kDouble));
}

}  // namespace

bool multiplies_bfloat16() {
#if defined(__x86_64__)
  static const bool known = __builtin_cpu_supports("avx512bf16") != 0;
  return known && at::globalContext().userEnabledMkldnn();
#else
  return false;
#endif
}

at::Tensor multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  if (is_lowered(a)) {
    const at::Tensor product = in_double(a, b);
    return (bias.defined() ? product.add_(bias) : product).to(at::kFloat);
  }
  return bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
}

void multiply_to(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (is_lowered(a)) {
    out.copy_(in_double(a, b));
  } else {
    at::mm_out(out, a, b);
  }
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (is_lowered(a)) {
    sum.add_(in_double(a, b));
  } else {
    sum.addmm_(a, b);
  }
}

at::Tensor linear_product(const SumParts& sum_parts, const at::Tensor& x, const at::Tensor& w,
                          const at::Tensor& bias) {
  const int64_t size = x.size(1);
  // 16 bits go to oneDNN by at::addmm.
  if (x.scalar_type() != at::kFloat || x.size(0) < kWorthRows ||
      !goes_to_onednn(x.size(0) * size * w.size(0))) {
    return multiply(x, w.t(), bias);
  }
  const int64_t parts = (size + sum_parts.products - 1) / sum_parts.products;
  at::Tensor sum;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = size * part / parts;
    const int64_t count = size * (part + 1) / parts - begin;
    sum = onednn_product(x.narrow(1, begin, count), w.narrow(1, begin, count),
                         part == 0 ? bias : at::Tensor(), sum);
  }
  return sum;
}

at::Tensor gradient_product(const SumParts& sum_parts, const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = a.size(0);
  if (a.scalar_type() != at::kFloat) {
    return at::mm(a.t(), b);
  }
  // oneDNN copies its first operand where that is transposed; the narrow one is less to copy, where
  // transposing the result is less still.
  const bool swapped = a.size(1) > b.size(1) && rows > b.size(1);
  const bool onednn = rows >= kWorthRows &&
                      a.size(1) * b.size(1) * std::min(rows, sum_parts.rows) >= kWorthPart &&
                      goes_to_onednn(a.numel() * b.size(1));
  at::Tensor sum;
  for (int64_t begin = 0; begin < rows; begin += sum_parts.rows) {
    const int64_t count = std::min(sum_parts.rows, rows - begin);
    const at::Tensor of_a = a.narrow(0, begin, count).t();
    const at::Tensor of_b = b.narrow(0, begin, count);
    if (onednn) {
      sum = swapped ? onednn_product(of_b.t(), of_a, {}, sum) : onednn_product(of_a, of_b.t(), {}, sum);
    } else if (sum.defined()) {
      add_product(sum, of_a, of_b);
    } else {
      sum = multiply(of_a, of_b);
    }
  }
  return onednn && swapped ? sum.t().contiguous() : sum;
}

}  // namespace aten_ext::cpu
