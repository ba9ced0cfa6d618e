// The registry under threads, without torch or Python: four that call, one that toggles, one that reads.
//
// Standard library only, so that every byte of the program is instrumented: ThreadSanitizer then sees each
// synchronisation there is, and has no false report to give. Exit code 1 if a count does not add up.
//
//   c++ -std=c++20 -O1 -g -fsanitize=thread -pthread -I aten_ext registry_threads.cpp
//   aten_ext/core/registry.cpp
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "core/registry.h"

namespace {

using aten_ext::Override;

constexpr int kCallers = 4;
constexpr uint64_t kCalls = 200'000;  // of each caller
constexpr int kToggles = 100'000;
constexpr int kReasons = 60;  // more than Counts has rows for

Override overrides[] = {
    {"first", "CPU", "", true}, {"second", "CPU", "", true}, {"second", "CUDA", "", true}};

// As string literals are: one address each, for ever.
std::vector<std::string> make_reasons() {
  std::vector<std::string> reasons;
  for (int i = 0; i < kReasons; ++i) {
    reasons.push_back("reason " + std::to_string(i));
  }
  return reasons;
}
const std::vector<std::string> reasons = make_reasons();

// What a generated entry does.
void call(Override& self, uint64_t number) {
  if (!self.enabled.load(std::memory_order_relaxed)) {
    self.counts.add_disabled();
  } else if (number % 3 == 0) {
    self.counts.add_declined(reasons[number / 3 % kReasons].c_str());
  } else {
    self.counts.add_ran();
  }
}

uint64_t total(const Override& override) {
  uint64_t sum = override.counts.ran() + override.counts.disabled();
  for (const auto& [reason, count] : override.counts.declined()) {
    sum += count;
  }
  return sum;
}

void run_all(bool with_resets) {
  std::vector<std::thread> threads;
  for (int caller = 0; caller < kCallers; ++caller) {
    threads.emplace_back([caller] {
      for (uint64_t i = 0; i < kCalls; ++i) {
        for (Override& override : overrides) {
          call(override, i + static_cast<uint64_t>(caller));
        }
      }
    });
  }
  const aten_ext::Registry registry{overrides, std::size(overrides)};
  threads.emplace_back([registry] {
    for (int i = 0; i < kToggles; ++i) {
      registry.set_enabled(i % 3 == 0 ? "*" : "second", i % 2 != 0);
    }
    registry.set_enabled("*", true);
  });
  threads.emplace_back([registry, with_resets] {
    for (int i = 0; i < 1000; ++i) {
      for (Override& override : registry) {
        if (total(override) > kCallers * kCalls) {
          std::puts("more calls counted than made");
          std::exit(1);
        }
        if (with_resets) {
          override.counts.reset();
        }
      }
      if (registry.names() != "first, second") {
        std::exit(1);
      }
    }
  });
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

int main() {
  run_all(/*with_resets=*/false);
  for (const Override& override : overrides) {
    if (total(override) != kCallers * kCalls) {
      std::printf("%s %s: %llu calls counted of %llu\n", override.name, override.key,
                  static_cast<unsigned long long>(total(override)),
                  static_cast<unsigned long long>(kCallers * kCalls));
      return 1;
    }
  }
  for (Override& override : overrides) {
    override.counts.reset();
  }
  run_all(/*with_resets=*/true);
  std::puts("registry: every call counted once");
  return 0;
}
