// The registry: what every override is called, whether it is on, and what its calls did.
// Standard library only: no torch, no operator names. The rows themselves are generated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/counts.h"

namespace aten_ext {

// One override at one dispatch key, or a graph pass, whose work is done in Python.
struct Override {
  const char* name;     // "cat.out"
  const char* key;      // "CUDA"; "Inductor" for a pass
  const char* summary;  // one line for people
  bool built;           // false for the CUDA rows of a CPU build: known by name, never registered
  bool measured;        // false: no benchmark has shown it to be faster yet, so it starts off
  std::atomic<bool> enabled;
  Counts counts{};
};

// Which environment variable or torch version stopped the load; empty: nothing did.
struct LoadState {
  std::string error;
  bool active = false;  // entries are registered with the dispatcher
};

class Watch;

struct Registry {
  Override* overrides;
  size_t size;
  Watch* watch = nullptr;
  LoadState* state = nullptr;

  Override* begin() const {
    return overrides;
  }
  Override* end() const {
    return overrides + size;
  }

  // How many rows match `pattern`: an override's name, or one with the wildcards * ? [ ].
  size_t count_matching(const std::string& pattern) const;
  // Turn every row that matches on or off. Returns how many did. What is not measured is turned on by
  // its exact name only, never by a wildcard.
  size_t set_enabled(const std::string& pattern, bool enabled) const;
  // The valid names, sorted, each once, separated by commas.
  std::string names() const;
  // Apply ATEN_EXT_ONLY, ATEN_EXT_ENABLE, then ATEN_EXT_DISABLE. Returns an error that names the variable, or
  // "".
  std::string apply_environment() const;
};

// True unless ATEN_EXT=0. Sets `error` when it is neither 0 nor 1.
bool wanted_by_environment(std::string& error);

Registry& registry();  // defined in the generated entries.cpp

}  // namespace aten_ext
