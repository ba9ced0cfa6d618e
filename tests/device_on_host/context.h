// A stack with what runs on it, to be left and entered again.
//
// glibc's swapcontext makes a system call, and its longjmp saves and checks more than a switch needs: the
// threads of a kernel take turns millions of times. So x86-64 has a switch of its own. Elsewhere, and under a
// sanitizer, which has to see the stacks change, contexts are entered by setcontext and left by longjmp.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DEVICE_ON_HOST_OWN_SWITCH
#endif

#ifdef DEVICE_ON_HOST_OWN_SWITCH

namespace device_on_host {

struct Context {
  void* stack_pointer = nullptr;
};

extern "C" void device_on_host_switch(void** leave, void* enter);

// `body` never returns.
inline void prepare(Context& context, char* stack, size_t bytes, void (*body)()) {
  // What device_on_host_switch takes off the stack: six registers and where to go on. The stack is aligned to
  // 16 bytes where `body` begins as it is after a call.
  constexpr size_t kRegisters = 6;
  auto* top = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15});
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(body);
  for (size_t i = 0; i < kRegisters; ++i) {
    *--top = 0;
  }
  context.stack_pointer = top;
}

inline void switch_to(Context& from, Context& to) {
  device_on_host_switch(&from.stack_pointer, to.stack_pointer);
}

}  // namespace device_on_host

#else

#include <ucontext.h>
#include <csetjmp>

namespace device_on_host {

struct Context {
  ucontext_t begin{};
  std::jmp_buf resume;
  bool started = false;
};

inline void prepare(Context& context, char* stack, size_t bytes, void (*body)()) {
  getcontext(&context.begin);
  context.begin.uc_stack.ss_sp = stack;
  context.begin.uc_stack.ss_size = bytes;
  context.begin.uc_link = nullptr;
  makecontext(&context.begin, body, 0);
}

inline void switch_to(Context& from, Context& to) {
  from.started = true;
  if (_setjmp(from.resume) == 0) {
    if (to.started) {
      _longjmp(to.resume, 1);
    }
    setcontext(&to.begin);
  }
}

}  // namespace device_on_host

#endif
