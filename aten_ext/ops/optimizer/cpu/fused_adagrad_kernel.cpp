// The fused Adagrad step on CPU, vectorised with at::vec. setup.py compiles it with AVX2, FMA and F16C and
// CPU_CAPABILITY=AVX2; fused_adagrad.cpp calls it where the machine has them.
//
// For each element, with t the step, g the gradient (divided by grad_scale, negated by maximize):
//
//   g += weight_decay * p
//   s += g * g
//   p -= lr / (1 + (t - 1) * lr_decay) * g / (sqrt(s) + eps)
//
// (Duchi, Hazan & Singer 2011, https://jmlr.org/papers/v12/duchi11a.html, the diagonal form.) As in
// fused_adam_kernel.cpp the order of operations, the rounding of each scalar and the places where a product
// and a sum are rounded once are those of PyTorch's own CPU kernel as its wheels are compiled, so that
// turning the override on changes no bit of a result. Before torch 2.14 that kernel rounds the scalars of
// fp16 and bf16 tensors to these types for whole vectors, so this one does
// (ops/optimizer/cpu/upstream_numerics.h).
//
// fp32 moves 20 bytes an element (reads p g s, writes p s) for about 8 FLOPs with one square root and one
// division: memory-bound for lists larger than the cache.
#include "ops/optimizer/cpu/fused_adagrad.h"

#include <cmath>
#include <type_traits>

#include "ops/optimizer/cpu/update_units.h"
#include "ops/optimizer/cpu/upstream_numerics.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

// The scalars, rounded to `Rounded` and then to the dtype of the arithmetic.
template <typename Op, typename Rounded>
struct AdagradScalars {
  AdagradScalars(const FusedAdagradParams& p, double rate)
      : rate(Op(Rounded(rate))), weight_decay(Op(Rounded(p.weight_decay))), eps(Op(Rounded(p.eps))) {}

  Vectorized<Op> rate, weight_decay, eps;
};

// The step of update_units.h.
template <typename T, bool decays>
struct AdagradStep {
  using Op = OpMath<T>;
  using Vec = Vectorized<Op>;
  static constexpr int kLists = kAdagradLists;

  AdagradStep(const FusedAdagradParams& p, double step)
      : AdagradStep(p, p.lr / std::fma(step - 1.0, p.lr_decay, 1.0), 0) {}

  template <bool tail>
  C10_ALWAYS_INLINE void update(Vec (&x)[kLists]) const {
    if constexpr (tail && kIs16Bit<T>) {
      update_with(x, of_tail);
    } else {
      update_with(x, of_vectors);
    }
  }

  Vec grad_scale;
  bool has_grad_scale, maximize;

 private:
  AdagradStep(const FusedAdagradParams& p, double rate, int /*unlike the other*/)
      : grad_scale(Op(p.grad_scale)),
        has_grad_scale(p.has_grad_scale),
        maximize(p.maximize),
        of_vectors(p, rate),
        of_tail(p, rate) {}

  template <typename Scalars>
  C10_ALWAYS_INLINE void update_with(Vec (&x)[kLists], const Scalars& s) const {
    if (maximize) {
      x[kGrad] = x[kGrad] * Vec(Op(-1));
    }
    if constexpr (decays) {
      x[kGrad] = at::vec::fmadd(x[kParam], s.weight_decay, x[kGrad]);
    }
    x[kStateSum] = at::vec::fmadd(x[kGrad], x[kGrad], x[kStateSum]);
    x[kParam] = x[kParam] - s.rate * x[kGrad] / (x[kStateSum].sqrt() + s.eps);
  }

  AdagradScalars<Op, std::conditional_t<kAdagradRoundsScalars, T, Op>> of_vectors;
  AdagradScalars<Op, Op> of_tail;
};

template <typename T, bool decays>
void update(const FusedAdagradParams& p, int64_t begin, int64_t end) {
  const auto make = [&p](double step) { return AdagradStep<T, decays>(p, step); };
  update_units<T>(p.tensors, p.count, begin, end, make);
}

}  // namespace

void fused_adagrad(const FusedAdagradParams& p, int64_t begin, int64_t end) {
  with_dtype(p.dtype, [&p, begin, end](auto value) {
    using T = decltype(value);
    return p.weight_decay != 0 ? update<T, true>(p, begin, end) : update<T, false>(p, begin, end);
  });
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
