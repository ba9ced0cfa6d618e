// Three faults on purpose, one for each sanitizer: if none is reported, a clean run means nothing.
#include <cstdint>
#include <cstdlib>
#include <thread>

namespace {
int64_t shared = 0;
}

// One byte past the end of an allocation (AddressSanitizer).
extern "C" int canary_address(int size) {
  volatile char* memory = static_cast<char*>(std::malloc(size));
  const int value = memory[size];
  std::free(const_cast<char*>(memory));
  return value;
}

// Signed overflow (UndefinedBehaviorSanitizer).
extern "C" int canary_undefined(int value) {
  return value + INT32_MAX;
}

// Two threads, one variable (ThreadSanitizer).
extern "C" int64_t canary_thread() {
  std::thread other([] { shared += 1; });
  shared += 1;
  other.join();
  return shared;
}
