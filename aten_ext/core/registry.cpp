#include "core/registry.h"

#include <fnmatch.h>

#include <cstdlib>
#include <set>
#include <sstream>

namespace aten_ext {

std::vector<std::pair<std::string, uint64_t>> Counts::declined() const {
  std::vector<std::pair<std::string, uint64_t>> result;
  auto add = [&result](const std::string& reason, uint64_t count) {
    if (count == 0) {
      return;
    }
    for (auto& [text, sum] : result) {
      if (text == reason) {
        sum += count;
        return;
      }
    }
    result.emplace_back(reason, count);
  };
  for (const Row& row : rows_) {
    const char* reason = row.reason.load(std::memory_order_acquire);
    if (reason == nullptr) {
      break;
    }
    add(reason, row.tally.value());
  }
  add("other reasons", other_reasons_.value());
  return result;
}

void Counts::reset() {
  ran_.reset();
  disabled_.reset();
  late_.reset();
  other_reasons_.reset();
  // The reasons stay: another thread may be between finding its row and counting.
  for (Row& row : rows_) {
    row.tally.reset();
  }
}

namespace {

bool matches(const std::string& pattern, const Override& override) {
  return fnmatch(pattern.c_str(), override.name, 0) == 0;
}

std::vector<std::string> split_names(const char* text) {
  std::vector<std::string> names;
  std::stringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) {
    const size_t first = name.find_first_not_of(" \t");
    if (first != std::string::npos) {
      names.push_back(name.substr(first, name.find_last_not_of(" \t") - first + 1));
    }
  }
  return names;
}

}  // namespace

size_t Registry::count_matching(const std::string& pattern) const {
  size_t count = 0;
  for (const Override& override : *this) {
    count += matches(pattern, override) ? 1 : 0;
  }
  return count;
}

size_t Registry::set_enabled(const std::string& pattern, bool enabled) const {
  size_t count = 0;
  for (Override& override : *this) {
    if (matches(pattern, override)) {
      const bool by_wildcard = pattern != override.name;
      if (!(enabled && by_wildcard && !override.measured)) {
        override.enabled.store(enabled, std::memory_order_relaxed);
      }
      ++count;
    }
  }
  return count;
}

std::string Registry::names() const {
  std::set<std::string> sorted;
  for (const Override& override : *this) {
    sorted.insert(override.name);
  }
  std::string text;
  for (const std::string& name : sorted) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::string Registry::apply_environment() const {
  struct Variable {
    const char* name;
    bool enables;
    bool alone;  // everything that it does not name is turned off
  };
  // ONLY first, DISABLE last: together they mean "of these, not those".
  for (const Variable variable : {Variable{"ATEN_EXT_ONLY", true, true},
                                  {"ATEN_EXT_ENABLE", true, false},
                                  {"ATEN_EXT_DISABLE", false, false}}) {
    const char* text = std::getenv(variable.name);
    if (text == nullptr) {
      continue;
    }
    const std::vector<std::string> patterns = split_names(text);
    if (variable.alone && patterns.empty()) {
      continue;  // an empty ATEN_EXT_ONLY is an unset one, not "nothing"
    }
    for (const std::string& pattern : patterns) {
      if (count_matching(pattern) == 0) {
        return std::string("[aten_ext] ") + variable.name + ": expected names of overrides (" + names() +
               "), got '" + pattern + "'";
      }
    }
    if (variable.alone) {
      set_enabled("*", false);
    }
    for (const std::string& pattern : patterns) {
      set_enabled(pattern, variable.enables);
    }
  }
  return "";
}

bool wanted_by_environment(std::string& error) {
  const char* text = std::getenv("ATEN_EXT");
  const std::string value = text == nullptr ? "" : text;
  if (value.empty() || value == "1") {
    return true;
  }
  if (value != "0") {
    error = "[aten_ext] ATEN_EXT: expected 0 or 1, got '" + value + "'";
  }
  return false;
}

}  // namespace aten_ext
