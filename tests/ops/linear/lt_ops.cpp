// What the tests of linear layers ask of the parts of cuBLASLt's way: its cache, its key, and the stand-in
// for the library itself.
#include <torch/library.h>

#include <cublasLt.h>

#include "core/lru_cache.h"
#include "ops/linear/lt.h"

namespace {

struct Key {
  int64_t number;
};

// Which of a sequence of keys a cache of that capacity had to make values for.
std::vector<int64_t> misses(int64_t capacity, at::IntArrayRef keys) {
  aten_ext::LruCache<Key, int64_t> cache(static_cast<size_t>(capacity));
  std::vector<int64_t> result;
  for (const int64_t number : keys) {
    bool made = false;
    const int64_t value = cache.get({number}, [&](int64_t& fresh) {
      fresh = number * 3;
      made = true;
    });
    TORCH_CHECK(value == number * 3, "a value of another key");
    TORCH_CHECK(cache.size() <= static_cast<size_t>(capacity), "more entries than the capacity");
    result.push_back(made ? 1 : 0);
  }
  return result;
}

// A value that cannot be made leaves nothing behind.
int64_t size_after_failure() {
  aten_ext::LruCache<Key, int64_t> cache(2);
  cache.get({1}, [](int64_t&) {});
  try {
    cache.get({2}, [](int64_t&) { throw std::runtime_error("cannot"); });
  } catch (const std::runtime_error&) {
  }
  return static_cast<int64_t>(cache.size());
}

}  // namespace

TORCH_LIBRARY(aten_ext_on_host_linear_lt, m) {
  m.def("misses(int capacity, int[] keys) -> int[]", misses);
  m.def("size_after_failure", size_after_failure);
  m.def("log2_alignment", [](int64_t address) -> int64_t { return aten_ext::cuda::log2_alignment(address); });
  m.def("max_products", []() -> int64_t { return aten_ext::cuda::kMaxLtProducts; });
  m.def("asked", []() -> int64_t { return device_on_host::fake_lt().asked; });
  m.def("set_fake(bool answers, bool runs, int workspace) -> ()",
        [](bool answers, bool runs, int64_t workspace) {
          device_on_host::FakeLt& fake = device_on_host::fake_lt();
          fake.answers = answers;
          fake.runs = runs;
          fake.workspace = static_cast<size_t>(workspace);
        });
  // The heuristic's first answer, and parts that its answer with smaller tiles splits K into.
  m.def("set_answers", [](int64_t id, double waves, int64_t split) {
    device_on_host::fake_lt().id = static_cast<uint32_t>(id);
    device_on_host::fake_lt().waves = static_cast<float>(waves);
    device_on_host::fake_lt().split = static_cast<uint32_t>(split);
  });
  m.def("kernel", []() -> int64_t { return device_on_host::fake_lt().kernel; });
  // Workspace limit, alignments of A, B, C, D in bytes, mask of reductions: what was last preferred.
  m.def("preference", []() -> std::vector<int64_t> {
    const cublasLtMatmulPreferenceOpaque_t& p = device_on_host::fake_lt().preference;
    return {static_cast<int64_t>(p.workspace),
            p.alignment[0],
            p.alignment[1],
            p.alignment[2],
            p.alignment[3],
            p.reduction};
  });
}
