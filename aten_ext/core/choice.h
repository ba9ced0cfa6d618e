// The two answers that an override gives to its entry: choose() decides, run() carries out.
#pragma once

#include <optional>
#include <utility>

namespace aten_ext {

// What choose() answers: a plan, or the reason why upstream runs instead.
//
// Plan is plain data: all that run() knows about the decision.
template <class P>
class Choice {
 public:
  using Plan = P;

  // `reason`: a literal. Counts find it by its address.
  Choice(const char* reason) : reason_(reason) {}
  Choice(const Plan& plan) : plan_(plan) {}
  Choice(const Choice&) = default;
  Choice& operator=(const Choice&) = default;
  // Not trivial: a choice is then always returned in memory, reason first, where scripts/gdb reads it.
  ~Choice() {}  // NOLINT(modernize-use-equals-default)

  // nullptr: there is a plan.
  const char* reason() const {
    return reason_;
  }
  const Plan& plan() const {
    return plan_;
  }

 private:
  const char* reason_ = nullptr;
  Plan plan_{};
};

// The driver did not take the launch (a green context, a limit of MPS), and nothing was written.
struct Refused {};
inline constexpr Refused kRefused{};

// What run() answers: the operator's result, or kRefused.
template <class R>
class Ran {
 public:
  Ran(R result) : result_(std::move(result)) {}
  Ran(Refused /*refused*/) {}

  bool refused() const {
    return !result_.has_value();
  }
  R take() {
    return std::move(*result_);
  }

 private:
  std::optional<R> result_;
};

template <class R>
class Ran<R&> {
 public:
  Ran(R& result) : result_(&result) {}
  Ran(Refused /*refused*/) {}

  bool refused() const {
    return result_ == nullptr;
  }
  R& take() {
    return *result_;
  }

 private:
  R* result_ = nullptr;
};

// A run that returns nothing: `return {};`.
template <>
class Ran<void> {
 public:
  Ran() = default;
  Ran(Refused /*refused*/) : refused_(true) {}

  bool refused() const {
    return refused_;
  }
  void take() {}

 private:
  bool refused_ = false;
};

}  // namespace aten_ext
