// What aten_ext.explain() learns from C++, and the GPU's say in a choice.
#pragma once

#include <c10/macros/Macros.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/choice.h"
#include "core/gpu.h"

namespace aten_ext {

// The override's name; the reason to go upstream, or ""; the plan in words; what it needs of a GPU.
using Explained = std::tuple<std::string, std::string, std::string, std::vector<int64_t>>;

template <class Plan>
Explained explained(const char* name, const Choice<Plan>& choice) {
  if (choice.reason() != nullptr) {
    return {name, choice.reason(), "", {}};
  }
  return {name, "", choice.plan().describe(), {}};
}

template <class Plan>
Explained explained_on_gpu(const char* name, const Choice<Plan>& choice) {
  Explained answer = explained(name, choice);
  if (choice.reason() == nullptr) {
    const Needs needs = choice.plan().needs();
    std::get<3>(answer) = {needs.code, needs.shared_bytes, needs.cluster, needs.resident_blocks,
                           needs.blocks_of_multiprocessor};
  }
  return answer;
}

// A choice for a GPU that the build has code for; otherwise the reason.
template <class Choose, class DeviceOf>
C10_ALWAYS_INLINE auto on_gpu(const Choose& choose, const DeviceOf& device_of) {
  auto choice = choose();
  if (choice.reason() == nullptr) {
    if (const char* const reason = decline_gpu(device_of())) {
      choice = reason;
    }
  }
  return choice;
}

}  // namespace aten_ext
