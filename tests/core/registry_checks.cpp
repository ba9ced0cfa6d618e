// What the registry does with rows that are not measured, and with names in the environment. Standard library
// only; prints the names of the rows that are on, a line for each question on the command line.
#include <cstdlib>
#include <iostream>
#include <string>

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

}  // namespace

// enable=PATTERN, disable=PATTERN, or VARIABLE=VALUE of the environment.
int main(int count, char** questions) {
  for (int i = 1; i < count; ++i) {
    reset();
    const std::string question = questions[i];
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
