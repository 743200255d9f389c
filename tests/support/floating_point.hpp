// SPDX-License-Identifier: MIT
// Floating-point environments that a caller may have set, and what shows that a task runs in one.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cfenv>
#include <cstdint>
#include <mhla/core/index.hpp>
#include <stdexcept>
#include <thread>
#include <vector>

namespace floating_point {

/// Environments other than the one that a program begins with.
enum class Setting { upward, flushing, trapping, x87_in_float };

/// Those that this machine and C library have.
inline std::vector<Setting> settings() {
  std::vector<Setting> all{Setting::upward};
#if defined(__x86_64__) || defined(__aarch64__)
  all.push_back(Setting::flushing);
#endif
#if defined(__x86_64__) && defined(__GLIBC__)  // 64-bit Arm need not have traps
  all.push_back(Setting::trapping);
#endif
#if defined(__x86_64__)
  all.push_back(Setting::x87_in_float);
#endif
  return all;
}

/// This thread's environment with a setting, until the end of the scope.
class Scope {
 public:
  explicit Scope(Setting setting) {
    std::fegetenv(&before_);
#if defined(__x86_64__)
    sse_before_ = __builtin_ia32_stmxcsr();
#endif
    if (setting == Setting::upward) std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    constexpr unsigned flush = 0x8040;  // results and operands
    if (setting == Setting::flushing) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | flush);
    if (setting == Setting::x87_in_float) {
      const std::uint16_t control = 0x007f;
      __asm__ __volatile__("fldcw %0" : : "m"(control));
    }
#elif defined(__aarch64__)
    constexpr std::uint64_t flush = 1ull << 24;
    std::uint64_t control;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(control));
    if (setting == Setting::flushing) __asm__ __volatile__("msr fpcr, %0" : : "r"(control | flush));
#endif
#if defined(__GLIBC__)
    if (setting == Setting::trapping) {
      std::feclearexcept(FE_ALL_EXCEPT);
      feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    }
#endif
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() {
    std::fesetenv(&before_);
#if defined(__x86_64__)  // of which Windows' fesetenv restores a part
    __builtin_ia32_ldmxcsr(sse_before_);
#endif
  }

 private:
  std::fenv_t before_;
#if defined(__x86_64__)
  unsigned sse_before_ = 0;
#endif
};

/// What an environment shows in, as bits: comparisons of numbers would obey it as well.
using Traits = std::array<std::uint64_t, 5>;

/// What the environment of this thread makes of a third, of a subnormal, in long double, and which
/// exceptions trap. Not inlined: compilers move arithmetic past the instructions that change it.
__attribute__((noinline)) inline Traits traits() {
  const volatile double one = 1, three = 3, least = 1e-308, tenth = 0.1;
  const volatile long double long_one = 1, long_three = 3;
  int traps = 0;
#if defined(__GLIBC__)
  traps = fegetexcept();
#endif
  const long double third = long_one / long_three;
  const auto bits = [](long double x) {
    return std::bit_cast<std::uint64_t>(static_cast<double>(x));
  };
  return {std::bit_cast<std::uint64_t>(one / three), std::bit_cast<std::uint64_t>(least * tenth),
          bits(third), bits(third - static_cast<long double>(1.0 / 3)),
          static_cast<std::uint64_t>(traps)};
}

/// `count` threads with an environment of their own, and exceptions raised in it.
struct OwnEnvironmentExecutor {
  mhla::Index count;

  mhla::Index num_slots() const { return count; }

  template <class Task>
  void parallel_for(mhla::Index tasks, const Task& task) const {
    std::atomic<mhla::Index> next{0};
    std::atomic<bool> spoilt{false};
    const auto work = [&](mhla::Index slot) {
      std::fesetenv(FE_DFL_ENV);
      std::feraiseexcept(FE_DIVBYZERO | FE_INVALID);
      const auto own = traits();
      for (mhla::Index i = next++; i < tasks; i = next++) task(i, slot);
      if (traits() != own || std::fetestexcept(FE_DIVBYZERO | FE_INVALID) == 0) spoilt = true;
    };
    std::vector<std::thread> threads;
    for (mhla::Index slot = 0; slot < count; ++slot) threads.emplace_back(work, slot);
    for (std::thread& thread : threads) thread.join();
    if (spoilt) throw std::logic_error("a thread did not get its environment back");
  }
};

}  // namespace floating_point
