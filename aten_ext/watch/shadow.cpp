#include "watch/shadow.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/DispatchKeySet.h>
#include <omp.h>
#include <pthread.h>
#include <torch/library.h>

#include <mutex>

#include "core/load_guard.h"

namespace aten_ext {
namespace {

thread_local bool internal = false;

constexpr c10::DispatchKeySet kAboveBackends =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | c10::python_ks;

// A child that was forked from a process with a pool of OpenMP threads has no such threads, and a parallel
// region there waits for ever. The user's own calls may have none, upstream's may: they are not to be what
// hangs, and run on one thread.
bool forked = false;
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });

}  // namespace

bool is_internal() {
  return internal;
}

Internal::Internal() : before_(internal), exclude_(kAboveBackends), event_(at::RecordScope::FUNCTION) {
  internal = true;
  threads_ = at::get_num_threads();
  if (forked) {
    omp_set_num_threads(1);
  }
  if (event_.isActive()) {
    event_.before(std::string_view("aten_ext::shadow"));
  }
}

Internal::~Internal() {
  internal = before_;
  if (forked) {
    omp_set_num_threads(threads_);
  }
}

Randomness::Randomness(bool used, at::Device device, std::optional<at::Generator> given) {
  if (used) {
    generator_ = given.has_value() ? given : at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator_->mutex());
    before_ = generator_->get_state();
  }
}

void Randomness::rewind() {
  if (generator_.has_value()) {
    const std::lock_guard lock(generator_->mutex());
    after_ = generator_->get_state();
    generator_->set_state(before_);
  }
}

Randomness::~Randomness() {
  if (after_.defined()) {
    const std::lock_guard lock(generator_->mutex());
    generator_->set_state(after_);
  }
}

ShadowCall::ShadowCall(Watch& watch, const Override& row, std::string signature) : watch_(watch) {
  row_.override = row.name;
  row_.key = row.key;
  row_.signature = std::move(signature);
}

void ShadowCall::captured() {
  row_.captured = 1;
  watch_.add(row_);
}

void ShadowCall::compared(const std::vector<Pair>& pairs) {
  ShadowRow row = row_;
  row.differences = compare(pairs);
  row.compared = 1;
  row.differing = row.differences.exact() ? 0 : 1;
  watch_.add(row);
}

void ShadowCall::failed(const char* what) {
  const std::string_view text = what;
  row_.failed = 1;
  row_.error = text.substr(0, text.find('\n'));  // the rest is a stack trace
  watch_.add(row_);
}

void overwrite(const std::vector<Pair>& pairs) {
  for (const Pair& pair : pairs) {
    if (pair.ours.defined() && pair.theirs.defined()) {
      if (pair.ours.sizes() != pair.theirs.sizes()) {  // an out= argument
        pair.ours.resize_(pair.theirs.sizes());
      }
      pair.ours.copy_(pair.theirs);
    }
  }
}

std::tuple<int64_t, int64_t, int64_t, int64_t, double, double, double, std::string, std::string>
compare_lists(at::TensorList ours, at::TensorList theirs) {
  TORCH_CHECK(ours.size() == theirs.size(), "[compare_lists] expected lists of one length, got ", ours.size(),
              " and ", theirs.size());
  std::vector<Pair> pairs;
  pair_up<at::TensorList>("tensor", ours, theirs, pairs);
  const Internal internal;
  const Differences d = compare(pairs);
  const auto number = [](uint64_t n) { return static_cast<int64_t>(n); };
  return {number(d.elements), number(d.different), number(d.nan), number(d.layouts), d.max_absolute,
          d.max_relative,     d.max_ulp,           d.worst,       d.layout};
}

}  // namespace aten_ext

TORCH_LIBRARY_FRAGMENT(aten_ext, m) {
  if (!aten_ext::may_define()) {
    return;
  }
  m.def(
      "compare_lists(Tensor[] ours, Tensor[] theirs) -> "
      "(int, int, int, int, float, float, float, str, str)",
      TORCH_FN(aten_ext::compare_lists));
}
