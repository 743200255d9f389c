// SPDX-License-Identifier: MIT
// The parameter type of overloads that say in one sentence why a call does not compile.
#pragma once

#include <initializer_list>
#include <mhla/core/config.hpp>

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
