// What aten_ext.explain() learns from C++, and the GPU's say in a choice.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
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
template <class Plan>
Choice<Plan> on_gpu(const Choice<Plan>& choice, std::optional<c10::Device> device) {
  const char* const reason = decline_gpu(choice.reason(), device);
  return reason == choice.reason() ? choice : Choice<Plan>(reason);
}

}  // namespace aten_ext
