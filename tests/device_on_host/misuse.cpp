#include <cstdint>
#include <cstdio>

#include "runtime.h"

// What the compiler calls before an access to an address that is no multiple of its type's alignment, or by
// an index that an array does not have (-fsanitize=alignment,bounds, without the library that comes with
// them).
namespace {

struct Where {
  const char* file;
  uint32_t line;
};

[[noreturn]] void fail_at(const void* where, uintptr_t what, const char* why) {
  const auto* const at = static_cast<const Where*>(where);
  std::fprintf(stderr, "%s:%u: %#zx\n", at->file, at->line, static_cast<size_t>(what));
  device_on_host::fail(why);
}

}  // namespace

extern "C" void __ubsan_handle_type_mismatch_v1_abort(const void* where, uintptr_t address) {
  fail_at(where, address, "a misaligned address");
}

extern "C" void __ubsan_handle_out_of_bounds_abort(const void* where, uintptr_t index) {
  fail_at(where, index, "an index beyond an array");
}
