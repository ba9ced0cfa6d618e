// What the split of a tensor list between threads asks of ATen: see tensor_list.h.
#include "ops/optimizer/cpu/tensor_list.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <string>

#include "core/denormals.h"

namespace aten_ext::cpu {
namespace {

// Fewer elements than this, which take 3 us at 0.4 ns each, are not worth waking another thread for.
constexpr int64_t kElementsPerThread = 8192;

}  // namespace

bool has_avx2() {
#if defined(__x86_64__)
  static const bool known = [] {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX2" || capability == "AVX512";
  }();
  return known;
#else
  return false;
#endif
}

bool worth_threads(int64_t elements) {
  return elements >= 2 * kElementsPerThread && at::get_num_threads() > 1;
}

void parallel_units(int64_t units, int64_t elements_per_unit,
                    const std::function<void(int64_t begin, int64_t end)>& kernel) {
  parallel_for_as_caller(0, units, kElementsPerThread / elements_per_unit, kernel);
}

}  // namespace aten_ext::cpu
