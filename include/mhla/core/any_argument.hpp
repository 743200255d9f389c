// SPDX-License-Identifier: MIT
// The parameter type of overloads that say in one sentence why a call does not compile.
#pragma once

#include <initializer_list>
#include <mhla/core/config.hpp>
#include <type_traits>

MHLA_NAMESPACE_BEGIN

/// \cond INTERNAL
// Converts from anything, lists in braces included. Beside its other overloads a public function
// has one that takes AnyArguments and fails a static_assert. Converting to AnyArgument is never
// better than converting to a view, and worse than no conversion, so that overload is chosen only
// where no other is viable.
struct AnyArgument {
  constexpr AnyArgument() = default;
  template <class... X>
  constexpr AnyArgument(const X&...) {}                                // NOLINT: see above
  constexpr AnyArgument(const std::initializer_list<AnyArgument>&) {}  // NOLINT: see above
};
// For a parameter that is a T, or derives from it, in another overload.
template <class X, class T>
concept NotA = !std::is_base_of_v<T, X>;
// Always false, but dependent, so that a static_assert fails only where such an overload is called.
template <class...>
inline constexpr bool no_such_call = false;
/// \endcond

MHLA_NAMESPACE_END
