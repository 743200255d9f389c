// SPDX-License-Identifier: MIT
// Runs tasks of a call in the floating-point environment of its caller, on any thread.
#pragma once

#include <cfenv>
#include <cstdint>
#include <mhla/core/config.hpp>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// The floating-point modes of a thread: rounding, whether subnormals are flushed to zero, and which
// exceptions trap, but not which have been raised. A new thread copies those of the thread that
// starts it; later changes there do not reach it.
class FloatingPointModes {
 public:
  static FloatingPointModes of_this_thread() {
    FloatingPointModes modes;
#if defined(__x86_64__)
    __asm__ __volatile__("stmxcsr %0\n\tfnstcw %1"
                         : "=m"(modes.sse_), "=m"(modes.x87_)
                         :
                         : "memory");
    modes.sse_ &= ~raised_sse;
#elif defined(__aarch64__)
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(modes.control_) : : "memory");
#else
    std::fegetenv(&modes.all_);
#endif
    return modes;
  }

  // Sets the modes of this thread. No exception may be raised in it: it could trap.
  void apply() const {
#if defined(__x86_64__)
    __asm__ __volatile__("ldmxcsr %0\n\tfldcw %1" : : "m"(sse_), "m"(x87_) : "memory");
#elif defined(__aarch64__)
    __asm__ __volatile__("msr fpcr, %0" : : "r"(control_) : "memory");
#else
    std::fesetenv(&all_);
#endif
  }

#if defined(__x86_64__)
  bool operator==(const FloatingPointModes& other) const {
    return sse_ == other.sse_ && x87_ == other.x87_;
  }
#elif defined(__aarch64__)
  bool operator==(const FloatingPointModes& other) const { return control_ == other.control_; }
#else
  bool operator==(const FloatingPointModes&) const { return false; }  // a fenv_t cannot be compared
#endif

 private:
#if defined(__x86_64__)
  static constexpr std::uint32_t raised_sse = 0x3f;
  std::uint32_t sse_;
  std::uint16_t x87_;  // for long double
#elif defined(__aarch64__)
  std::uint64_t control_;
#else
  std::fenv_t all_;
#endif
};

// Sets other modes for this thread; the destructor restores its own environment.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(const FloatingPointModes& modes)
      : changes_(!(FloatingPointModes::of_this_thread() == modes)) {
    if (!changes_) return;
#if defined(__x86_64__)
    __asm__ __volatile__("stmxcsr %0" : "=m"(own_sse_) : : "memory");
#endif
    std::feholdexcept(&own_);  // clears raised exceptions, which might trap under the new modes
    modes.apply();
  }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;
  ~FloatingPointScope() {
    if (!changes_) return;
    std::fesetenv(&own_);
#if defined(__x86_64__)  // on Windows fesetenv does not restore the flushing of subnormals
    __asm__ __volatile__("ldmxcsr %0" : : "m"(own_sse_) : "memory");
#endif
  }

 private:
  const bool changes_;
  std::fenv_t own_;
#if defined(__x86_64__)
  std::uint32_t own_sse_;
#endif
};
/// \endcond

MHLA_NAMESPACE_END
