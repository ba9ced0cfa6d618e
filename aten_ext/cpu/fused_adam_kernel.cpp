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
#include "cpu/fused_adam.h"

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/macros/Macros.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <type_traits>

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

using at::vec::Vectorized;

// What is the same for every element of a tensor, rounded once to the dtype of the arithmetic. A copy lives
// in registers or on the stack of the loop: read through a reference it would be loaded again after each
// store, which might have changed it for all the compiler knows.
template <typename Op>
struct Scalars {
  using Vec = Vectorized<Op>;

  Scalars(const FusedAdamParams& p, double step)
      : grad_scale(Op(p.grad_scale)),
        decay(Op(p.decoupled ? 1 - p.lr * p.weight_decay : p.weight_decay)),
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

  Vec grad_scale, decay, lerp_weight, lerp_from_grad, beta2, one_minus_beta2, minus_step_size,
      sqrt_bias_correction2, eps;
  bool has_grad_scale, maximize;
};

enum class Decay { None, Param, Grad };

// What would be a branch in the middle of the loop. As a template parameter it leaves the operands in
// registers (bf16, 14 tensors of 1.25 M: 5.2 ms instead of 6.0).
template <Decay decay_, bool amsgrad_, bool tail_>
struct Flags {
  static constexpr Decay decay = decay_;
  static constexpr bool amsgrad = amsgrad_;
  // The elements after a tensor's last whole vector: upstream's compiler rounds their exp_avg_sq elsewhere.
  static constexpr bool tail = tail_;
};

// One vector of each operand, in the dtype of the arithmetic; updated in place.
template <typename Op>
struct Operands {
  Vectorized<Op> param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

// Everything after the gradient has been unscaled and stored.
template <typename F, typename Op>
C10_ALWAYS_INLINE void step(Operands<Op>& x, const Scalars<Op>& s) {
  using Vec = Vectorized<Op>;
  if (s.maximize) {
    x.grad = x.grad * Vec(Op(-1));
  }
  if constexpr (F::decay == Decay::Param) {
    x.param = x.param * s.decay;
  } else if constexpr (F::decay == Decay::Grad) {
    x.grad = at::vec::fmadd(x.param, s.decay, x.grad);
  }
  x.exp_avg =
      at::vec::fmadd(s.lerp_weight, x.grad - x.exp_avg, Vec::blendv(x.exp_avg, x.grad, s.lerp_from_grad));
  const Vec weighted_grad = s.one_minus_beta2 * x.grad;
  x.exp_avg_sq = F::tail ? at::vec::fmadd(x.exp_avg_sq, s.beta2, weighted_grad * x.grad)
                         : at::vec::fmadd(weighted_grad, x.grad, x.exp_avg_sq * s.beta2);
  Vec second_moment = x.exp_avg_sq;
  if constexpr (F::amsgrad) {
    x.max_exp_avg_sq = at::vec::maximum(x.max_exp_avg_sq, x.exp_avg_sq);
    second_moment = x.max_exp_avg_sq;
  }
  const Vec denominator = second_moment.sqrt() / s.sqrt_bias_correction2 + s.eps;
  x.param = x.param + s.minus_step_size * x.exp_avg / denominator;
}

// fp32 and fp64: arithmetic in the dtype of the tensors.
template <typename T>
struct Vectors {
  using Op = T;
  static constexpr int64_t kSize = Vectorized<T>::size();

  // `count` elements: a vector, or with `tail` fewer, at the end of a tensor.
  template <typename F>
  C10_ALWAYS_INLINE static void update(const FusedAdamTensor& tensor, int64_t at, int64_t count,
                                       const Scalars<Op>& s) {
    T* param = static_cast<T*>(tensor.param) + at;
    T* grad = static_cast<T*>(tensor.grad) + at;
    T* exp_avg = static_cast<T*>(tensor.exp_avg) + at;
    T* exp_avg_sq = static_cast<T*>(tensor.exp_avg_sq) + at;
    T* max_exp_avg_sq = static_cast<T*>(tensor.max_exp_avg_sq) + (F::amsgrad ? at : 0);
    using Vec = Vectorized<T>;
    Operands<T> x{Vec::loadu(param, count), Vec::loadu(grad, count), Vec::loadu(exp_avg, count),
                  Vec::loadu(exp_avg_sq, count), Vec()};
    if constexpr (F::amsgrad) {
      x.max_exp_avg_sq = Vec::loadu(max_exp_avg_sq, count);
    }
    if (s.has_grad_scale) {
      x.grad = x.grad / s.grad_scale;
      x.grad.store(grad, count);
    }
    step<F>(x, s);
    x.param.store(param, count);
    x.exp_avg.store(exp_avg, count);
    x.exp_avg_sq.store(exp_avg_sq, count);
    if constexpr (F::amsgrad) {
      x.max_exp_avg_sq.store(max_exp_avg_sq, count);
    }
  }
};

// fp16 and bf16: arithmetic in fp32; one vector of T is two of float.
template <typename T>
struct HalfVectors {
  using Op = float;
  static constexpr int64_t kSize = Vectorized<T>::size();

  struct Pair {
    Vectorized<float> low, high;
  };
  static Pair load(const T* from, int64_t count) {
    const auto [low, high] = at::vec::convert_to_float<T>(Vectorized<T>::loadu(from, count));
    return {low, high};
  }
  static void store(T* to, const Vectorized<float>& low, const Vectorized<float>& high, int64_t count) {
    at::vec::convert_from_float<T>(low, high).store(to, count);
  }

  template <typename F>
  C10_ALWAYS_INLINE static void update(const FusedAdamTensor& tensor, int64_t at, int64_t count,
                                       const Scalars<Op>& s) {
    T* param = static_cast<T*>(tensor.param) + at;
    T* grad = static_cast<T*>(tensor.grad) + at;
    T* exp_avg = static_cast<T*>(tensor.exp_avg) + at;
    T* exp_avg_sq = static_cast<T*>(tensor.exp_avg_sq) + at;
    T* max_exp_avg_sq = static_cast<T*>(tensor.max_exp_avg_sq) + (F::amsgrad ? at : 0);
    Pair g = load(grad, count);
    if (s.has_grad_scale) {
      g.low = g.low / s.grad_scale;
      g.high = g.high / s.grad_scale;
      store(grad, g.low, g.high, count);
    }
    const Pair w = load(param, count), m = load(exp_avg, count), v = load(exp_avg_sq, count);
    const Pair u = F::amsgrad ? load(max_exp_avg_sq, count) : Pair{};
    Operands<float> low{w.low, g.low, m.low, v.low, u.low};
    Operands<float> high{w.high, g.high, m.high, v.high, u.high};
    step<F>(low, s);
    step<F>(high, s);
    store(param, low.param, high.param, count);
    store(exp_avg, low.exp_avg, high.exp_avg, count);
    store(exp_avg_sq, low.exp_avg_sq, high.exp_avg_sq, count);
    if constexpr (F::amsgrad) {
      store(max_exp_avg_sq, low.max_exp_avg_sq, high.max_exp_avg_sq, count);
    }
  }
};

template <typename T, typename Impl, Decay decay, bool amsgrad>
void update_units(const FusedAdamParams& p, int64_t begin, int64_t end) {
  constexpr int64_t kElementsPerUnit = FusedAdamParams::kUnitBytes / static_cast<int64_t>(sizeof(T));
  static_assert(kElementsPerUnit % Impl::kSize == 0, "a vector must not cross into another thread's unit");
  const FusedAdamTensor* const stop = p.tensors + p.count;
  // The last tensor that starts at or before `begin`.
  const auto starts_after = [](int64_t unit, const FusedAdamTensor& t) { return unit < t.first_unit; };
  const FusedAdamTensor* tensor = std::upper_bound(p.tensors, stop, begin, starts_after) - 1;
  float step = tensor->step;
  Scalars<typename Impl::Op> s(p, step);
  for (; tensor != stop && tensor->first_unit < end; ++tensor) {
    if (tensor->step != step) {  // two std::pow, most often the same ones
      step = tensor->step;
      s = Scalars<typename Impl::Op>(p, step);
    }
    const int64_t from = std::max<int64_t>(begin - tensor->first_unit, 0) * kElementsPerUnit;
    const int64_t to = std::min((end - tensor->first_unit) * kElementsPerUnit, tensor->numel);
    int64_t at = from;
    for (; at + Impl::kSize <= to; at += Impl::kSize) {
      Impl::template update<Flags<decay, amsgrad, false>>(*tensor, at, Impl::kSize, s);
    }
    if (at < to) {
      Impl::template update<Flags<decay, amsgrad, true>>(*tensor, at, to - at, s);
    }
  }
}

template <typename T, typename Impl, bool amsgrad>
void choose_decay(const FusedAdamParams& p, int64_t begin, int64_t end) {
  if (p.weight_decay == 0) {
    return update_units<T, Impl, Decay::None, amsgrad>(p, begin, end);
  }
  return p.decoupled ? update_units<T, Impl, Decay::Param, amsgrad>(p, begin, end)
                     : update_units<T, Impl, Decay::Grad, amsgrad>(p, begin, end);
}

template <typename T, typename Impl>
void choose_flags(const FusedAdamParams& p, int64_t begin, int64_t end) {
  return p.amsgrad ? choose_decay<T, Impl, true>(p, begin, end) : choose_decay<T, Impl, false>(p, begin, end);
}

}  // namespace

void fused_adam(const FusedAdamParams& p, int64_t begin, int64_t end) {
  switch (p.dtype) {
    case AdamDtype::Float:
      return choose_flags<float, Vectors<float>>(p, begin, end);
    case AdamDtype::Double:
      return choose_flags<double, Vectors<double>>(p, begin, end);
    case AdamDtype::BFloat16:
      return choose_flags<at::BFloat16, HalfVectors<at::BFloat16>>(p, begin, end);
    case AdamDtype::Half:
      return choose_flags<at::Half, HalfVectors<at::Half>>(p, begin, end);
  }
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
