// What the registry does with rows that are not measured, with names in the environment, and with calls that
// are counted by several threads. Standard library only; prints the names of the rows that are on, or what
// was counted, a line for each question on the command line.
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "core/registry.h"

namespace {

aten_ext::Override rows[] = {
    {"cat", "CPU", "", true, true, {true}, {}},
    {"cat", "CUDA", "", true, false, {false}, {}},
    {"cat.out", "CUDA", "", true, false, {false}, {}},
    {"mm", "CUDA", "", true, true, {true}, {}},
};
constexpr aten_ext::Registry the_registry{rows, 4};

void reset() {
  for (aten_ext::Override& row : rows) {
    row.enabled = row.measured;
  }
}

std::string on() {
  std::string text;
  for (const aten_ext::Override& row : rows) {
    text += row.enabled ? std::string(row.name) + "@" + row.key + " " : "";
  }
  return text;
}

constexpr int kCalls = 200000;

void call(aten_ext::Counts& counts) {
  static const char* const reasons[] = {"first", "second"};
  for (int i = 0; i < kCalls; ++i) {
    counts.add_ran();
    counts.add_disabled();
    counts.add_late();
    counts.add_declined(reasons[i % 2]);
  }
}

// Calls for each of the three other outcomes, or -1 where they do not agree; then those of each reason.
std::string counted(const aten_ext::Counts& counts) {
  const bool agree = counts.ran() == counts.disabled() && counts.ran() == counts.late();
  std::string text = agree ? std::to_string(counts.ran()) : "-1";
  for (const auto& [reason, count] : counts.declined()) {
    text += " " + reason + " " + std::to_string(count);
  }
  return text + "\n";
}

// By a thread that ends, by four at once and the caller, after a reset, by all again.
std::string count_calls() {
  aten_ext::Counts counts;
  std::thread(call, std::ref(counts)).join();
  std::string text = counted(counts);
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back(call, std::ref(counts));
    }
    call(counts);
    for (std::thread& thread : threads) {
      thread.join();
    }
    text += counted(counts);
    counts.reset();
    text += counted(counts);
  }
  return text;
}

}  // namespace

// count, enable=PATTERN, disable=PATTERN, or VARIABLE=VALUE of the environment.
int main(int count, char** questions) {
  for (int i = 1; i < count; ++i) {
    reset();
    const std::string question = questions[i];
    if (question == "count") {
      std::cout << count_calls();
      continue;
    }
    const std::string name = question.substr(0, question.find('='));
    const std::string value = question.substr(question.find('=') + 1);
    if (name == "enable" || name == "disable") {
      std::cout << the_registry.set_enabled(value, name == "enable") << " " << on() << "\n";
      continue;
    }
    setenv(name.c_str(), value.c_str(), 1);
    const std::string error = the_registry.apply_environment();
    unsetenv(name.c_str());
    std::cout << (error.empty() ? on() : error) << "\n";
  }
}
