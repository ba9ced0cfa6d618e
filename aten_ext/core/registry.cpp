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

// A name, or one with wildcards. fnmatch() takes 0.2 us even where there is nothing to expand, and a program
// that turns overrides off and on around what it times pays for every name and row.
class Pattern {
 public:
  explicit Pattern(const std::string& text)
      : text_(text), expands_(text.find_first_of("*?[\\") != std::string::npos) {}

  bool is_name(const Override& override) const {
    return text_ == override.name;
  }
  bool matches(const Override& override) const {
    return expands_ ? fnmatch(text_.c_str(), override.name, 0) == 0 : is_name(override);
  }

 private:
  const std::string& text_;
  bool expands_;
};

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

size_t Registry::count_matching(const std::string& text) const {
  const Pattern pattern(text);
  size_t count = 0;
  for (const Override& override : *this) {
    count += pattern.matches(override) ? 1 : 0;
  }
  return count;
}

size_t Registry::set_enabled(const std::string& text, bool enabled) const {
  const Pattern pattern(text);
  size_t count = 0;
  for (Override& override : *this) {
    if (pattern.matches(override)) {
      const bool by_wildcard = !pattern.is_name(override);
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
