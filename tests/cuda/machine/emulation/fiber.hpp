// SPDX-License-Identifier: MIT
// Fibers: functions with stacks of their own that hand control to each other by themselves. On
// x86-64 a few instructions do that, elsewhere <ucontext.h>. Sanitizers are told of every switch.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define MHLA_MACHINE_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MHLA_MACHINE_ASAN
#endif
#endif
#if defined(MHLA_MACHINE_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__x86_64__) && !defined(MHLA_MACHINE_UCONTEXT)
#define MHLA_MACHINE_X86_64
#else
#include <ucontext.h>
#endif

namespace stand_in {

/// A stack and where the function on it goes on. Default-made, it stands for the stack that the
/// program itself runs on.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    if (memory_ != nullptr) munmap(memory_, stack_bytes + page());
  }

  /// Gives it a stack on which `function` begins when it is first switched to. It must not return.
  void begin_with(void (*function)()) {
    void* memory = mmap(nullptr, stack_bytes + page(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = memory;
    // The lowest page cannot be touched: a stack that is too small ends the program there.
    mprotect(memory, page(), PROT_NONE);
    bottom_ = static_cast<unsigned char*>(memory) + page();
    // Stacks that all end at one place of a page would share a few lines of the caches.
    bytes_ = stack_bytes - static_cast<std::size_t>(stacks()++ % 128) * 7 * 64;
    function_ = function;
#if defined(MHLA_MACHINE_X86_64)
    // As after a call: the stack is 8 bytes off a multiple of 16, a return address of zero on it.
    auto* top = reinterpret_cast<void**>(bottom_ + bytes_);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&first_function);
    *--top = nullptr;  // its rbp
    place_ = top;
#else
    getcontext(&context_);
    context_.uc_stack.ss_sp = bottom_;
    context_.uc_stack.ss_size = bytes_;
    context_.uc_link = nullptr;
    makecontext(&context_, &first_function, 0);
#endif
  }

  /// Leaves the fiber that runs, `from`, for `to`, and returns when somebody switches back.
  static void switch_between(Fiber& from, Fiber& to) {
    running() = &to;
#if defined(MHLA_MACHINE_ASAN)
    __sanitizer_start_switch_fiber(&from.fake_stack_, to.bottom_, to.bytes_);
    left() = &from;
#endif
    exchange_stacks(from, to);
    arrived(from);
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{320} << 10;
  static unsigned& stacks() {
    static unsigned count = 0;
    return count;
  }
  static std::size_t page() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
  static Fiber*& running() {
    static Fiber* fiber = nullptr;
    return fiber;
  }

  static void first_function() {
    Fiber& self = *running();
    arrived(self);
    self.function_();
    std::abort();  // nobody is there to return to
  }

#if defined(MHLA_MACHINE_ASAN)
  static Fiber*& left() {
    static Fiber* fiber = nullptr;
    return fiber;
  }
  static void arrived(Fiber& self) {
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(self.fake_stack_, &bottom, &bytes);
    if (left()->memory_ == nullptr) {  // the program's own stack is known only now
      left()->bottom_ = static_cast<unsigned char*>(const_cast<void*>(bottom));
      left()->bytes_ = bytes;
    }
  }
#else
  static void arrived(Fiber&) {}
#endif

#if defined(MHLA_MACHINE_X86_64)
  // What a call preserves is kept on the stack that is left (rbp and the place to go on at), or by
  // the compiler (the clobbered ones). The 128 bytes below a stack's end may be in use.
  [[gnu::noinline]] static void exchange_stacks(Fiber& from, Fiber& to) {
    void** const place = &from.place_;
    void* const next = to.place_;
    asm volatile(
        "leaq -128(%%rsp), %%rsp\n\t"
        "leaq 1f(%%rip), %%rdx\n\t"
        "pushq %%rdx\n\t"
        "pushq %%rbp\n\t"
        "movq %%rsp, (%%rax)\n\t"
        "movq %%rcx, %%rsp\n\t"
        "popq %%rbp\n\t"
        "popq %%rdx\n\t"
        "jmp *%%rdx\n"
        "1:\n\t"
        "leaq 128(%%rsp), %%rsp\n"
        :
        : "a"(place), "c"(next)
        : "rdx", "rbx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
          "memory", "cc");
  }
  void* place_ = nullptr;
#else
  static void exchange_stacks(Fiber& from, Fiber& to) { swapcontext(&from.context_, &to.context_); }
  ucontext_t context_;
#endif

  void* memory_ = nullptr;
  unsigned char* bottom_ = nullptr;
  std::size_t bytes_ = 0;
  void (*function_)() = nullptr;
#if defined(MHLA_MACHINE_ASAN)
  void* fake_stack_ = nullptr;
#endif
};

}  // namespace stand_in
