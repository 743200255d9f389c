// SPDX-License-Identifier: MIT
// What the overloads take that say, in one sentence, why a call does not compile.
#pragma once

#include <initializer_list>
#include <mhla/core/config.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Converts from anything, lists in braces included. A public function has, beside its overloads,
// one of AnyArguments with a static_assert: a conversion by the caller's type is no better than one
// to a view, and worse than none, so that this overload is chosen where no other can be.
struct AnyArgument {
  constexpr AnyArgument() = default;
  template <class... X>
  constexpr AnyArgument(const X&...) {}                                // NOLINT: see above
  constexpr AnyArgument(const std::initializer_list<AnyArgument>&) {}  // NOLINT: see above
};
// For a place where another overload takes a T, and what derives from it.
template <class X, class T>
concept NotA = !std::is_base_of_v<T, X>;
// False, for a static_assert that fires where such an overload is called.
template <class...>
inline constexpr bool no_such_call = false;
/// \endcond

MHLA_NAMESPACE_END
