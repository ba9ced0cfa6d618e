// The fused SGD step on CPU, vectorised with at::vec. setup.py compiles it with AVX2, FMA and F16C and
// CPU_CAPABILITY=AVX2; fused_sgd.cpp calls it where the machine has them.
//
// For each element, with g the gradient (divided by grad_scale, negated by maximize):
//
//   g += weight_decay * p
//   b = g at the first step, else momentum * b + (1 - dampening) * g         with momentum
//   g += momentum * b   with nesterov, else g = b                           with momentum
//   p -= lr * g
//
// (Sutskever et al. 2013, http://proceedings.mlr.press/v28/sutskever13.html, in torch.optim.SGD's form, where
// the learning rate multiplies the buffer and not each gradient in it.) As in fused_adam_kernel.cpp the order
// of operations and the places where a product and a sum are rounded once are those of PyTorch's own CPU
// kernel as its wheels are compiled, so that turning the override on changes no bit of a result.
//
// fp32 moves 12 bytes an element (reads p g, writes p), 20 with momentum (b as well), for 2 to 9 FLOPs:
// memory-bound.
#include "ops/optimizer/cpu/fused_sgd.h"

#include "ops/optimizer/cpu/update_units.h"

namespace aten_ext::cpu::CPU_CAPABILITY {
namespace {

enum class Momentum { None, First, Plain, FirstNesterov, Nesterov };

// The step of update_units.h.
template <typename T, Momentum momentum_, bool decays>
struct SgdStep {
  using Op = OpMath<T>;
  using Vec = Vectorized<Op>;
  static constexpr bool kNesterov = momentum_ == Momentum::Nesterov || momentum_ == Momentum::FirstNesterov;
  static constexpr bool kFirst = momentum_ == Momentum::First || momentum_ == Momentum::FirstNesterov;
  static constexpr int kLists = momentum_ == Momentum::None ? kSgdLists - 1 : kSgdLists;

  explicit SgdStep(const FusedSgdParams& p)
      : grad_scale(Op(p.grad_scale)),
        weight_decay(Op(p.weight_decay)),
        momentum(Op(p.momentum)),
        one_minus_dampening(Op(1 - p.dampening)),
        minus_lr(Op(-p.lr)),
        has_grad_scale(p.has_grad_scale),
        maximize(p.maximize) {}

  template <bool tail>
  C10_ALWAYS_INLINE void update(Vec (&x)[kLists]) const {
    if (maximize) {
      x[kGrad] = x[kGrad] * Vec(Op(-1));
    }
    if constexpr (decays) {
      x[kGrad] = at::vec::fmadd(x[kParam], weight_decay, x[kGrad]);
    }
    if constexpr (momentum_ != Momentum::None) {
      x[kMomentumBuffer] = blended(x[kMomentumBuffer], x[kGrad], tail);
      x[kGrad] = kNesterov ? at::vec::fmadd(x[kMomentumBuffer], momentum, x[kGrad]) : x[kMomentumBuffer];
    }
    x[kParam] = at::vec::fmadd(x[kGrad], minus_lr, x[kParam]);
  }

  Vec grad_scale, weight_decay, momentum, one_minus_dampening, minus_lr;
  bool has_grad_scale, maximize;

 private:
  // The buffer after this gradient. In the tail upstream's compiler rounds the other of the two products.
  C10_ALWAYS_INLINE Vec blended(const Vec& buffer, const Vec& grad, bool tail) const {
    if constexpr (kFirst) {
      return grad;
    }
    return tail ? at::vec::fmadd(buffer, momentum, one_minus_dampening * grad)
                : at::vec::fmadd(one_minus_dampening, grad, buffer * momentum);
  }
};

template <typename T, Momentum momentum>
void choose_decay(const FusedSgdParams& p, int64_t begin, int64_t end) {
  const auto run = [&p, begin, end](auto decays) {
    const auto make = [&p](double /*step*/) { return SgdStep<T, momentum, decltype(decays)::value>(p); };
    update_units<T>(p.tensors, p.count, begin, end, make);
  };
  return p.weight_decay != 0 ? run(std::true_type()) : run(std::false_type());
}

template <typename T>
void choose_momentum(const FusedSgdParams& p, int64_t begin, int64_t end) {
  if (p.momentum == 0) {
    return choose_decay<T, Momentum::None>(p, begin, end);
  }
  if (p.nesterov) {
    return p.is_first_step ? choose_decay<T, Momentum::FirstNesterov>(p, begin, end)
                           : choose_decay<T, Momentum::Nesterov>(p, begin, end);
  }
  return p.is_first_step ? choose_decay<T, Momentum::First>(p, begin, end)
                         : choose_decay<T, Momentum::Plain>(p, begin, end);
}

}  // namespace

void fused_sgd(const FusedSgdParams& p, int64_t begin, int64_t end) {
  with_dtype(p.dtype, [&p, begin, end](auto value) { choose_momentum<decltype(value)>(p, begin, end); });
}

}  // namespace aten_ext::cpu::CPU_CAPABILITY
