// SPDX-License-Identifier: MIT
// Which calls take the quadratic path: those that it takes fewer multiply-adds for. Nothing else
// counts, so that a call has the same bits on every machine and for any number of threads.
// (Products of both paths run at about the same rate, those that mix summaries included.)
#pragma once

#include <mhla/policy/problem.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Whether a variant has the quadratic path.
template <class V>
inline constexpr bool has_quadratic_path = !is_structured<V> && !mixes_products<V>;

/// Estimated cost of a kv head of the longest sequence in a forward or a backward pass, in
/// multiply-adds; other work is counted as the multiply-adds that would take as long.
struct PathCosts {
  double linear;
  double quadratic;
};

/// `rounded` if the linear path multiplies bfloat16 in pairs.
template <class V>
MHLA_ONCE_A_CALL PathCosts path_costs(const Problem& problem, bool backward, bool rounded) {
  constexpr double tile = 1e4;      // the fixed cost of a tile
  constexpr double weight = 40;     // to write the weight of a query block for a key
  constexpr double in_pairs = 1.5;  // how many times as fast rounded products are
  constexpr double packing = 2;     // how many times as much a tile of pairs costs
  constexpr double causal_tile = 64;
  const Shape& shape = problem.shape;
  const auto of = [](Index count) { return static_cast<double>(count); };
  const double group = of(shape.group_size());
  const double queries = of(problem.query_grid.num_tokens());
  const double keys = of(problem.key_grid.num_tokens());
  if (queries == 0 || keys == 0) return {0, 0};
  const double rows = of(problem.query_blocks);
  const double columns = of(problem.key_blocks);
  const double features = of(problem.feature_dim);
  const double values = of(shape.value_dim);
  const double seen = is_causal<V> ? 0.5 : 1;
  const double matrices = of(shape.matrices());

  const double summary = features * values;
  const double pair = features + values;
  double linear = (keys + group * queries) * summary;
  double mixing = matrices * rows * columns * seen * summary;
  double tiles = columns + group * rows;  // if each block is one tile
  double quadratic = (normalizes<V> && rotates<V> ? features : 0) + pair;
  if (backward) {
    linear = (3 * keys + 2 * group * queries) * summary;
    mixing *= 3;
    tiles += columns;
    quadratic = 3 * quadratic - values;  // of five products two are with values
  }
  if (is_causal_within_block<V>) {
    const double own = (std::min)(causal_tile, keys / columns) / 2;
    linear +=
        group * queries * own * pair * (backward ? 5 : 1) + keys * summary * (backward ? 3 : 1);
    tiles += rows + (backward ? group * columns : 0);  // own keys of queries, own queries of keys
  }
  linear = (linear + mixing) / (rounded ? in_pairs : 1) + tile * tiles * (rounded ? packing : 1);
  const double last = is_causal<V> ? causal_tile / keys / 2 : 0;  // of the keys, in triangles
  quadratic *= group * queries * keys * (std::min)(1.0, seen + last);
  return {linear, quadratic + group * rows * keys * weight + tile};
}

/// Whether a call of a checked problem takes it.
template <class V>
MHLA_ONCE_A_CALL bool takes_quadratic_path([[maybe_unused]] const V& attention,
                                           [[maybe_unused]] const Problem& problem,
                                           [[maybe_unused]] bool backward,
                                           [[maybe_unused]] bool in_pairs) {
  if constexpr (!has_quadratic_path<V>) {
    return false;
  } else {
    if (problem.stage || problem.shape.empty()) return false;
    if (attention.path != Path::automatic) return attention.path == Path::quadratic;
    const PathCosts costs = path_costs<V>(problem, backward, in_pairs);
    return costs.quadratic < costs.linear;
  }
}

}  // namespace cpu

MHLA_NAMESPACE_END
