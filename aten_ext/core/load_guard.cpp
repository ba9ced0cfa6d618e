#include "core/load_guard.h"

#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/version.h>

#include "core/registry.h"
#include "watch/watch.h"

namespace aten_ext {
namespace {

// Why this is not optional: DispatchKey numbers move between torch releases (CUDA is 51 in 2.11 and
// 50 in 2.13), so a library built for one registers at another key in the other without any error.
std::string torch_mismatch() {
  // major << 56 | minor << 48 | ..., of the torch that is running; a C function, so that asking is safe
  // whichever torch that is.
  const uint64_t version = aoti_torch_abi_version();
  const auto major = static_cast<int>(version >> 56 & 0xff);
  const auto minor = static_cast<int>(version >> 48 & 0xff);
  if (major == TORCH_VERSION_MAJOR && minor == TORCH_VERSION_MINOR) {
    return "";
  }
  return "[aten_ext] built for torch " + std::to_string(TORCH_VERSION_MAJOR) + "." +
         std::to_string(TORCH_VERSION_MINOR) + ", running under torch " + std::to_string(major) + "." +
         std::to_string(minor) +
         "; rebuild it, in a checkout of aten_ext, with: "
         "pip install --no-build-isolation --no-deps --force-reinstall .";
}

// A function's static, not a global of this file: it is needed while another file is initialised.
LoadState& decide_once() {
  static LoadState state = [] {
    LoadState decided;
    decided.error = torch_mismatch();
    if (!decided.error.empty()) {
      return decided;
    }
    const bool wanted = wanted_by_environment(decided.error);
    if (decided.error.empty()) {
      decided.error = registry().apply_environment();
    }
    if (decided.error.empty()) {
      decided.error = registry().watch->apply_environment();
    }
    decided.active = wanted && decided.error.empty();
    return decided;
  }();
  registry().state = &state;
  return state;
}

class SilentHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// A function's static for the same reason as in decide_once().
SilentHandler& silent_handler() {
  static SilentHandler handler;
  return handler;
}

c10::WarningHandler* saved_handler = nullptr;
bool saved_warn_always = false;

}  // namespace

bool may_register() {
  return decide_once().active;
}

bool may_define() {
  return decide_once().error.empty();
}

bool silence_warnings() {
  if (may_define()) {
    saved_handler = c10::WarningUtils::get_warning_handler();
    saved_warn_always = c10::WarningUtils::get_warnAlways();
    c10::WarningUtils::set_warning_handler(&silent_handler());
    c10::WarningUtils::set_warnAlways(true);
  }
  return true;
}

bool restore_warnings() {
  if (may_define()) {
    c10::WarningUtils::set_warnAlways(saved_warn_always);
    c10::WarningUtils::set_warning_handler(saved_handler);
  }
  return true;
}

}  // namespace aten_ext

// For the Python side, and for C++ programs that dlopen this library.
extern "C" aten_ext::Registry* aten_ext_registry() {
  return &aten_ext::registry();
}

// "" when everything is in order; otherwise one line that says why nothing was registered.
extern "C" const char* aten_ext_load_error() {
  aten_ext::may_define();
  return aten_ext::registry().state->error.c_str();
}
