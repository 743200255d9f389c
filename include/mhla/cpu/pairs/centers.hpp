// SPDX-License-Identifier: MIT
// The means that a backward pass with a normalizer takes out of values and features, to round less.
//
// dq, dk and dmix are sums of phi(k_j) (v_j - y_t)^T. A part common to all of v does not change
// them, but would add its rounding errors to S_b. Therefore this is rounded instead:
//
//   C_b^T = sum_j w_j (phi(k_j) - zeta)^T = S_b^T - mu z_b^T - W_b zeta^T
//   w_j = v_j - mu,  W_b = sum_j w_j
//
// with the means mu and zeta of the unit's values and features. Of y_t the part
// mu (1 - epsilon / den_t) is left out, and the rest is added in float:
//
//   dQ^r_t = C~_i U_t + <U_t, W~_i> zeta                      = (S~_i - z~_i mu^T) U_t
//   dm_ib  = <dS~_i, C_b> + <p_i, W_b> + <dz~_i, z_b>
//   p_i    = dS~_i^T zeta                                     = sum_t <phi(q_t), zeta> U_t
//   dK^r_j = dS_b v_j - dS_b mu                               = dS_b w_j
//
// Errors are then relative to w_j, and gradients to v_j - y_t, where y_t is a mean of what block i
// sees. Where that is much less, as by local means of v under a local mix, the unit's backward pass
// is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <mhla/core/config.hpp>
#include <mhla/core/index.hpp>
#include <mhla/core/scalar.hpp>
#include <mhla/cpu/block_mixing.hpp>
#include <mhla/cpu/forward_unit.hpp>
#include <mhla/cpu/pairs/memory.hpp>
#include <mhla/cpu/pairs/panel.hpp>
#include <mhla/cpu/pairs/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {
namespace pairs {

/// What a unit's backward pass rounds.
enum class Rounding {
  plain,     ///< S_b: v has no more of a mean, nor blocks of v, than by chance
  centered,  ///< C_b
  nothing    ///< gradients may be relative to much less than either
};

/// sum_j v_j of a block, and the number of its tokens.
template <class L>
void sum_up_values(const Operands<L, BFloat16>& operands, const Unit<float>& unit, Index b,
                   const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  const BlockTable& table = operands.plan.tables.keys;
  const BlockSpan& block = table.blocks[unit.keys.first_block + b];
  const TokenRows<const BFloat16> values = key_rows(unit, operands.v);
  const Span<float> sum = centers.sum(b);
  std::fill_n(sum.data, sum.size, 0.0f);
  Index tokens = 0;
  for (Index t = block.first_tile; t < block.first_tile + block.tiles; ++t) {
    const TokenTile& tile = table.tiles[t];
    tokens += tile.tokens;
    if (is_in_place<float>(values)) {
      add_rows(sum, in_place(table, tile, values), tile.tokens);
    } else {
      const Panel<float> rows = panel(scratch.values.data, tile.tokens, values.dim);
      gather<BFloat16, float>(table, tile, values, {}, rows);
      cpu::add_rows<float>(LongSum<float>{sum}, 1.0f, rows, Into::add);
    }
  }
  centers.tokens[b] = static_cast<float>(tokens);
}

/// mu = sum / tokens, 0 where that is not finite.
inline void take_mean(Span<float> sum, float tokens) {
  for (float& element : sum) {
    element /= (std::max)(tokens, 1.0f);
    if (!(std::isfinite)(element)) element = 0;
  }
}

/// mu, one of bfloat16's numbers, so that dS_b mu is the product of what is rounded.
inline void take_mean_of_values(const Unit<float>& unit) {
  const Centers& centers = unit.memory.centers;
  float tokens = 0;
  for (Index b = 0; b < unit.keys.blocks; ++b) tokens += centers.tokens[b];
  weighted_row_sum<float>(centers.value, centers.sums(unit.keys.blocks), {}, Into::overwrite);
  take_mean(centers.value, tokens);
  for (float& mu : centers.value) {
    BFloat16 rounded;
    store(rounded, mu);
    mu = load(rounded);
  }
  pair_columns<float>(paired_rows(centers.paired_value.data, 1, centers.value.size),
                      Rows<const float>{centers.value.data, centers.value.size});
}

/// The sums of |w_j|^2 and |w_j|^4 of a block, and its tokens.
template <class L>
void take_moments(const Operands<L, BFloat16>& operands, const Unit<float>& unit, Index b,
                  const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  const BlockTable& table = operands.plan.tables.keys;
  const BlockSpan& block = table.blocks[unit.keys.first_block + b];
  Moments& moments = centers.moments[b];
  moments = {};
  Index tokens = 0;
  const Span<float> squares = scratch.pairs.tile;
  for (Index t = block.first_tile; t < block.first_tile + block.tiles; ++t) {
    const TokenTile& tile = table.tiles[t];
    tokens += tile.tokens;
    with_rows(table, tile, key_rows(unit, operands.v), scratch.values,
              [&](const auto& rows) { row_distances(rows, tile.tokens, centers.value, squares); });
    for (Index token = 0; token < tile.tokens; ++token) {
      moments.squares += squares[token];
      moments.fourths += squares[token] * squares[token];
    }
  }
  centers.tokens[b] = static_cast<float>(tokens);
}

/// W_b, |sum_j v_j|^2, and the moments of a block.
template <class L>
void center_values(const Operands<L, BFloat16>& operands, const Unit<float>& unit, Index b,
                   const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  const Span<const float> mu = centers.value;
  const Span<float> sum = centers.sum(b);
  const Panel<const float> whole{sum.data, 1, sum.size, sum.size};
  take_moments(operands, unit, b, scratch);
  centers.moments[b].sum = inner_product<float>(whole, whole);
  copy_row(centers.center(b).data, mu.data, mu.size);
  add_scaled_row(sum.data, -centers.tokens[b], mu.data, mu.size);
}

/// zeta of some blocks' first tiles: a mean of all features would be no better.
template <class L>
void take_mean_of_features(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                           const SlotScratch<float>& scratch) {
  constexpr Index enough = 512;  // tokens
  const BlockTable& table = operands.plan.tables.keys;
  const Span<float> zeta = unit.memory.centers.feature;
  const Index block_tokens = (std::max)(operands.plan.extents.block_tokens, Index{1});
  const Index count =
      (std::min)((std::max)(ceil_div(enough, block_tokens), Index{8}), unit.keys.blocks);
  float tokens = 0;
  std::fill_n(zeta.data, zeta.size, 0.0f);
  for (Index sample = 0; sample < count; ++sample) {
    const Index b = even_split(unit.keys.blocks, count, sample);
    const BlockSpan& block = table.blocks[unit.keys.first_block + b];
    if (block.tiles == 0) continue;
    const TokenTile& tile = table.tiles[block.first_tile];
    pack_keys(operands, tile, key_rows(unit, operands.k), {zeta, {}}, Into::add, scratch);
    tokens += static_cast<float>(tile.tokens);
  }
  take_mean(zeta, tokens);
}

/// W~ of query blocks [first, first + rows), and both sides of is_local. `products` [rows, key
/// blocks] is scratch.
template <class L>
void mix_values(const Plan<L, float>& plan, const Unit<float>& unit, Index matrix, Index first,
                const Panel<float>& products) {
  const Extents& e = plan.extents;
  const Centers& centers = unit.memory.centers;
  const Panel<float> sums = centers.sums(unit.keys.blocks);
  const Panel<float> mixed = centers.mixed(e, matrix, first, products.rows);
  const Panel<const float> mixing = unit_mixing(plan, unit, matrix).row_range(first, products.rows);
  mix<float>(mixing, sums, mixed);
  multiply_right_transposed<float>(products, mixed, sums);
  for (Index r = 0; r < products.rows; ++r) {
    const float* const weights = mixing.row(r);
    const Panel<const float> row = mixed.row_range(r, 1);
    float tokens = 0;
    for (Index b = 0; b < sums.rows; ++b) tokens += weights[b] * centers.tokens[b];
    const float inverse = tokens > 0 ? 1 / tokens : 0.0f;  // c_i = W~_i / tokens, from mu on
    const float square = inner_product<float>(row, row) * inverse * inverse;
    float rounded = 0;
    float remaining = 0;
    for (Index b = 0; b < sums.rows; ++b) {
      const float squares = centers.moments[b].squares;
      const float cross = 2 * inverse * products.row(r)[b];
      rounded += weights[b] * weights[b] * squares;
      remaining += weights[b] * weights[b] * (squares - cross + centers.tokens[b] * square);
    }
    float* const sides = centers.sides(e, matrix, first + r);
    sides[0] = rounded;
    sides[1] = remaining;
  }
}

/// Whether a mix is so local that gradients are relative to much less than w. c_i = W~_i / n~_i +
/// mu is the mean that block i sees, and of its
///   rounded = sum_b m_ib^2 sum_j |w_j|^2,  remaining = sum_b m_ib^2 sum_j |v_j - c_i|^2
/// the first must not be much more in all blocks or in one. (Twice as much in all would give errors
/// of 4.2e-3 if no term stood out.)
template <class L>
bool is_local(const Plan<L, float>& plan, const Unit<float>& unit) {
  double rounded = 0;
  double remaining = 0;
  for (Index matrix = 0; matrix < plan.extents.matrices; ++matrix)
    for (Index i = 0; i < unit.queries.blocks; ++i) {
      const float* const sides = unit.memory.centers.sides(plan.extents, matrix, i);
      if (!(sides[0] <= 4 * sides[1])) return true;
      rounded += static_cast<double>(sides[0]);
      remaining += static_cast<double>(sides[1]);
    }
  return !(rounded <= 1.15 * remaining);
}

/// What the values' moments say: nothing may be rounded if a few tokens have most of w, since
/// errors then do not average out, or if there is one block, whose dmix cancels.
inline Rounding rounding_of(const Unit<float>& unit) {
  double tokens = 0;
  double sums = 0;
  double squares = 0;
  double fourths = 0;
  for (Index b = 0; b < unit.keys.blocks; ++b) {
    const Moments& moments = unit.memory.centers.moments[b];
    tokens += static_cast<double>(unit.memory.centers.tokens[b]);
    sums += static_cast<double>(moments.sum);
    squares += static_cast<double>(moments.squares);
    fourths += static_cast<double>(moments.fourths);
  }
  if (!(fourths > 1e-30 && fourths < 1e30)) return Rounding::nothing;  // or beyond a float
  const double enough = (std::min)(16.0, tokens / 4);
  if (unit.keys.blocks < 2 || !(squares * squares >= enough * fourths)) return Rounding::nothing;
  // Of independent v both are equal; of blocks of a token they are whatever these hold.
  const bool tells = tokens >= 4 * static_cast<double>(unit.keys.blocks);
  return tells && sums <= 1.5 * squares ? Rounding::plain : Rounding::centered;
}

/// What the unit's backward pass rounds; if that is centered, mu, zeta, W and W~ are there. Without
/// a normalizer mu is 0.
template <class L>
Rounding center_unit(const Operands<L, BFloat16>& operands, const Unit<float>& unit,
                     const ExecutorRef& loop) {
  const Plan<L, float>& plan = operands.plan;
  const Index blocks = unit.keys.blocks;
  if constexpr (!normalizes<L>) {
    const Span<float> mu = unit.memory.centers.value;
    std::fill_n(mu.data, mu.size, 0.0f);
    loop.parallel_for(
        blocks, [&](Index b, Index slot) { take_moments(operands, unit, b, plan.scratch[slot]); });
    return rounding_of(unit) == Rounding::nothing ? Rounding::nothing : Rounding::plain;
  } else {
    loop.parallel_for(
        blocks, [&](Index b, Index slot) { sum_up_values(operands, unit, b, plan.scratch[slot]); });
    loop.parallel_for(1, [&](Index, Index) { take_mean_of_values(unit); });
    loop.parallel_for(
        blocks, [&](Index b, Index slot) { center_values(operands, unit, b, plan.scratch[slot]); });
    const Rounding rounding = rounding_of(unit);
    if (rounding != Rounding::centered) return rounding;
    loop.parallel_for(
        1, [&](Index, Index slot) { take_mean_of_features(operands, unit, plan.scratch[slot]); });
    const Index groups = ceil_div(unit.queries.blocks, Centers::rows_at_once);
    loop.parallel_for(plan.extents.matrices * groups, [&](Index task, Index slot) {
      const Index first = task % groups * Centers::rows_at_once;
      const Index rows = (std::min)(Centers::rows_at_once, unit.queries.blocks - first);
      mix_values(plan, unit, task / groups, first,
                 panel(plan.scratch[slot].pairs.products.data, rows, blocks));
    });
    return is_local(plan, unit) ? Rounding::nothing : rounding;
  }
}

/// sums [value_dim, whole columns] (+)= -mu z_b^T - W_b zeta^T, `key_sum` being z_b of rounded
/// features; both rows of `rows` [2, feature_dim] are scratch.
inline void subtract_means(const Centers& centers, Index b, const Panel<float>& rows,
                           const Panel<float>& sums, Into into) {
  scale_rows(rows.row_range(0, 1), -1.0f);
  for (Index c = 0; c < centers.feature.size; ++c) rows.row(1)[c] = -centers.feature[c];
  multiply_left_transposed(sums, centers.center_and_sum(b), rows, into);
}

/// dQ^r += <U_t, W~_i> zeta. `weights` is scratch.                   // [tile tokens, feature_dim]
inline void add_mixed_values(const Centers& centers, Span<const float> mixed,
                             const Panel<const float>& grad_numerators, Span<float> weights,
                             const Panel<float>& grad_rotated) {
  row_products<float>(weights, grad_numerators, mixed);
  cpu::multiply<float>(grad_rotated, Panel<const float>{weights.data, weights.size, 1, 1},
                       {centers.feature.data, 1, centers.feature.size, centers.feature.size},
                       Into::add);
}

/// dz_b -= dS_b mu, so that dS_b v_j is of w_j.
inline void subtract_center(const Centers& centers, const PairPanel& grad_transposed,
                            Span<float> grad_key_sum, const PairScratch& scratch) {
  const Panel<float> product = whole_panel(scratch.tile.data, 1, grad_transposed.cols);
  multiply(product, paired_rows(centers.paired_value.data, 1, centers.value.size), grad_transposed,
           Into::overwrite);
  for (Index c = 0; c < grad_key_sum.size; ++c) grad_key_sum[c] -= product.row(0)[c];
}

}  // namespace pairs
}  // namespace cpu

MHLA_NAMESPACE_END
