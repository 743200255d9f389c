// SPDX-License-Identifier: MIT
// Which calls take the quadratic path.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/policy/path.hpp>
#include <mhla/policy/problem.hpp>
#include <mhla/policy/traits.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Whether a variant has the quadratic path.
template <class V>
inline constexpr bool has_quadratic_path = !factors_mixing<V> && !mixes_products<V>;

template <class V>
bool takes_quadratic_path(const V& attention, const Problem& problem, [[maybe_unused]] bool backward) {
  if constexpr (!has_quadratic_path<V>) {
    return false;
  } else {
    if (problem.stage) return false;
    if (attention.path != Path::automatic) return attention.path == Path::quadratic;
    return false;
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
