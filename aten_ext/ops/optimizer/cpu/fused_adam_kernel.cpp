// The fused Adam / AdamW step on CPU, vectorised with at::vec. setup.py compiles it with AVX2, FMA and F16C
// and CPU_CAPABILITY=AVX2; fused_adam.cpp calls it where the machine has them.
//
// For each element, with t the step, g the gradient (divided by grad_scale, negated by maximize):
//
//   Adam:   g += weight_decay * p         AdamW:   p *= 1 - lr * weight_decay
//   m = lerp(m, g, 1 - beta1)
//   v = beta2 * v + (1 - beta2) * g * g                       v' = max(v', v) with amsgrad, else v
//   p -= lr / (1 - beta1^t) * m / (sqrt(v' ) / sqrt(1 - beta2^t) + eps)
//
// (Kingma & Ba 2015, arXiv:1412.6980; Loshchilov & Hutter 2019, arXiv:1711.05101; amsgrad: Reddi et al.
// 2018, arXiv:1904.09237.) The order of operations, the rounding of each scalar to the dtype of the
// arithmetic, the form of the lerp (torch.lerp's, two branches on the weight) and the places where a product
// and a sum are rounded once are those of PyTorch's own CPU kernel as its wheels are compiled, so that
// turning the override on changes no bit of a result. The fused multiply-adds are written out and the
// compiler makes no others (-ffp-contract=off): left to it, they would come and go with the code around them.
//
// fp32 moves 28 bytes an element (reads p g m v, writes p m v) for about 20 FLOPs with one square root and
// two divisions: memory-bound for lists larger than the cache, bound by sqrt and division inside it.
#include "ops/optimizer/cpu/fused_adam.h"

#include <cmath>

#include "ops/optimizer/cpu/update_units.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

enum class Decay { None, Param, Grad };

// The step of update_units.h. What would be a branch in the middle of the loop is a template parameter: it
// leaves the operands in registers.
template <typename OpMathType, Decay decay, bool amsgrad>
struct AdamStep {
  using Op = OpMathType;
  using Vec = Vectorized<Op>;
  static constexpr int kLists = amsgrad ? kAdamLists : kAdamLists - 1;

  AdamStep(const FusedAdamParams& p, double step)
      : grad_scale(Op(p.grad_scale)),
        weight_decay(Op(p.decoupled ? 1 - p.lr * p.weight_decay : p.weight_decay)),
        beta2(Op(p.beta2)),
        one_minus_beta2(Op(1 - p.beta2)),
        minus_step_size(Op(-(p.lr / (1 - std::pow(p.beta1, step))))),
        sqrt_bias_correction2(Op(std::sqrt(1 - std::pow(p.beta2, step)))),
        eps(Op(p.eps)),
        has_grad_scale(p.has_grad_scale),
        maximize(p.maximize) {
    // torch.lerp: from the nearer end, so that weight 1 gives exactly the gradient.
    const Op weight = static_cast<Op>(1 - p.beta1);
    const bool from_grad = !(std::abs(weight) < Op(0.5));
    lerp_weight = Vec(from_grad ? weight - Op(1) : weight);
    lerp_from_grad = Vec(Op(from_grad ? 1 : 0)) != Vec(Op(0));
  }

  // The tail is where upstream's compiler rounds exp_avg_sq elsewhere, and where std::max leaves out a NaN
  // that at::vec::maximum hands on.
  template <bool tail>
  C10_ALWAYS_INLINE void update(Vec (&x)[kLists]) const {
    if (maximize) {
      x[kGrad] = x[kGrad] * Vec(Op(-1));
    }
    if constexpr (decay == Decay::Param) {
      x[kParam] = x[kParam] * weight_decay;
    } else if constexpr (decay == Decay::Grad) {
      x[kGrad] = at::vec::fmadd(x[kParam], weight_decay, x[kGrad]);
    }
    x[kExpAvg] =
        at::vec::fmadd(lerp_weight, x[kGrad] - x[kExpAvg], Vec::blendv(x[kExpAvg], x[kGrad], lerp_from_grad));
    const Vec weighted_grad = one_minus_beta2 * x[kGrad];
    x[kExpAvgSq] = tail ? at::vec::fmadd(x[kExpAvgSq], beta2, weighted_grad * x[kGrad])
                        : at::vec::fmadd(weighted_grad, x[kGrad], x[kExpAvgSq] * beta2);
    Vec second_moment = x[kExpAvgSq];
    if constexpr (amsgrad) {
      x[kMaxExpAvgSq] = tail ? Vec::blendv(x[kMaxExpAvgSq], x[kExpAvgSq], x[kMaxExpAvgSq] < x[kExpAvgSq])
                             : at::vec::maximum(x[kMaxExpAvgSq], x[kExpAvgSq]);
      second_moment = x[kMaxExpAvgSq];
    }
    const Vec denominator = second_moment.sqrt() / sqrt_bias_correction2 + eps;
    x[kParam] = x[kParam] + minus_step_size * x[kExpAvg] / denominator;
  }

  Vec grad_scale, weight_decay, lerp_weight, lerp_from_grad, beta2, one_minus_beta2, minus_step_size,
      sqrt_bias_correction2, eps;
  bool has_grad_scale, maximize;
};

template <typename T, Decay decay, bool amsgrad>
void update(const FusedAdamParams& p, int64_t begin, int64_t end) {
  const auto make = [&p](double step) { return AdamStep<OpMath<T>, decay, amsgrad>(p, step); };
  update_units<T>(p.tensors, p.count, begin, end, make);
}

template <typename T, bool amsgrad>
void choose_decay(const FusedAdamParams& p, int64_t begin, int64_t end) {
  if (p.weight_decay == 0) {
    return update<T, Decay::None, amsgrad>(p, begin, end);
  }
  return p.decoupled ? update<T, Decay::Param, amsgrad>(p, begin, end)
                     : update<T, Decay::Grad, amsgrad>(p, begin, end);
}

}  // namespace

void fused_adam(const FusedAdamParams& p, int64_t begin, int64_t end) {
  with_dtype(p.dtype, [&p, begin, end](auto value) {
    using T = decltype(value);
    return p.amsgrad ? choose_decay<T, true>(p, begin, end) : choose_decay<T, false>(p, begin, end);
  });
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
