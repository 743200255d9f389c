// SPDX-License-Identifier: MIT
// What every header uses: macros, which all begin with MHLA_, and the parameter type of
// overloads that say in one sentence why a call does not compile.
#pragma once

// A compiler continues after #error, with 3,000 lines on concepts; a missing file stops it.
#if !defined(__GNUC__) && !defined(__clang__)
#error "mhla needs g++ 12 or clang 13, or newer: this compiler has no vector types (Windows: MinGW)"
#include <mhla needs g++ or clang>
#elif defined(__clang__) ? __clang_major__ < 13 : __GNUC__ < 12
#error "mhla needs g++ 12 or clang 13, or newer: this compiler is older"
#include <mhla needs a newer compiler>
#endif
#if __cplusplus < 202002L
#error "mhla needs C++20: compile with -std=c++20"
#include <mhla needs -std=c++20>
#endif
#if __SIZEOF_POINTER__ < 8
#error "mhla needs a 64-bit target: sizes and hashes have 64 bits"
#include <mhla needs a 64-bit target>
#endif

// Where the compiler assumes that there are no NaNs, even a test that compares with one passes.
#if (defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)) && \
    !defined(MHLA_ALLOW_FAST_MATH)
#error "mhla: -ffast-math breaks comparisons with NaN: omit it, or define MHLA_ALLOW_FAST_MATH"
#elif defined(__ASSOCIATIVE_MATH__) && !defined(MHLA_ALLOW_FAST_MATH)  // clang does not define it
#error "mhla: -fassociative-math breaks compensated sums: omit it, or define MHLA_ALLOW_FAST_MATH"
#endif

#include <initializer_list>

// nvcc hands designated initializers on to its host compiler as `{name: value}`, of which clang
// warns.
#if defined(__CUDACC__) && defined(__NVCC__) && defined(__clang__)
#pragma clang diagnostic ignored "-Wgnu-designator"
#endif

/// \addtogroup macros
/// \{

/// Opens namespace mhla. Its inline namespace changes with every incompatible version, so that two
/// versions of the library can meet in one program without sharing symbols.
#define MHLA_NAMESPACE_BEGIN \
  namespace mhla {           \
  inline namespace v0 {
/// Closes it.
#define MHLA_NAMESPACE_END \
  }                        \
  }

/// `__host__ __device__` where a CUDA compiler sees it: what a policy's functions carry, so that
/// kernels can call them.
#if defined(__CUDACC__)
#define MHLA_HOST_DEVICE __host__ __device__
#else
#define MHLA_HOST_DEVICE
#endif

/// \cond INTERNAL
// Exported, so that it can be caught in any shared object: with -fvisibility=hidden each shared
// object would have a type of its own.
#if defined(_WIN32)
#define MHLA_EXCEPTION
#else
#define MHLA_EXCEPTION __attribute__((visibility("default")))
#endif

// Functions that are not inlined: what throws, and what many places call and need not be fast. They
// are compiled once, not at every call.
#define MHLA_OUT_OF_LINE __attribute__((noinline))

// Functions that run once per call, or that call what takes the time: not inlined, and optimized
// less, which compiles faster; without optimization, as all else. Loops over elements belong
// elsewhere: they would not become vectors. (Not `cold`: g++ would take their callers for cold,
// too, a program's own functions among them.)
#if defined(__CUDACC__) || !defined(__OPTIMIZE__)
#define MHLA_ONCE_A_CALL __attribute__((noinline))
#elif defined(__clang__)
#define MHLA_ONCE_A_CALL __attribute__((noinline, minsize))
#else
#define MHLA_ONCE_A_CALL \
  __attribute__((        \
      noinline, optimize("O1", "no-tree-pta", "no-tree-dse", "no-dse", "no-tree-dominator-opts")))
#endif
/// \endcond

/// \}

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Converts from anything, lists in braces included. Converting to AnyArgument is never better than
// converting to a view, and worse than no conversion, so that an overload which takes AnyArguments
// is chosen only where no other is viable.
struct AnyArgument {
  constexpr AnyArgument() = default;
  template <class... X>
  constexpr AnyArgument(const X&...) {}                                // NOLINT: see above
  constexpr AnyArgument(const std::initializer_list<AnyArgument>&) {}  // NOLINT: see above
};
// Always false, but dependent, so that a static_assert fails only where such an overload is called.
template <class...>
inline constexpr bool no_such_call = false;

// MHLA_ANY_CALL(void f, { body }) declares overloads of f that are chosen only where no other is
// viable. Given... are the template arguments that the caller wrote. The second overload serves a
// call without arguments and, in clang, one with a list of named members, which clang converts to
// no class but an aggregate with members of these names.
#define MHLA_ANY_CALL(declaration, ...)                                                            \
  template <class... Given>                                                                        \
  declaration(AnyArgument, AnyArgument = {}, AnyArgument = {}, AnyArgument = {}, AnyArgument = {}, \
              AnyArgument = {}, AnyArgument = {}, AnyArgument = {}, AnyArgument = {},              \
              AnyArgument = {}, AnyArgument = {}, AnyArgument = {})                                \
      __VA_ARGS__ template <class... Given>                                                        \
      declaration(...) __VA_ARGS__
// Such overloads whose calls fail to compile with `sentence`.
#define MHLA_NO_SUCH_CALL(declaration, sentence)           \
  MHLA_ANY_CALL(declaration, {                             \
    static_assert(no_such_call<Given...>, sentence);       \
    throw; /* never reached; a statement for any result */ \
  })
/// \endcond

MHLA_NAMESPACE_END
