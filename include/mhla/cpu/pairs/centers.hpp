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

#include <mhla/cpu/forward_unit.hpp>
#include <mhla/cpu/pairs/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// What a unit's backward pass rounds.
enum class Rounding {
  plain,     ///< S_b: v has no more of a mean, nor has what a query block sees, than by chance
  centered,  ///< C_b
  nothing    ///< gradients may be relative to much less than either
};

/// sum_j v_j of a block, and the number of its tokens.
template <class L>
void sum_up_values(const Unit<L, BFloat16>& unit, Index b, const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  const BlockTable& table = unit.keys.table;
  const TokenRows<const BFloat16> values = unit.key_rows(unit.operands.v);
  const Span<float> sum = centers.sum(b);
  std::fill_n(sum.data, sum.size, 0.0f);
  centers.tokens[b] = static_cast<float>(unit.keys[b].tokens);
  for (const TokenTile& tile : unit.keys.tiles_of(b)) {
    if (is_in_place<float>(values)) {
      pair_functions<float>().add_rows(sum, in_place(table, tile, values), tile.tokens);
    } else {
      const Panel<float> rows = panel(scratch.values.data, tile.tokens, values.dim);
      gather<BFloat16, float>(table, tile, values, {}, rows);
      add_rows<float>(CompensatedSum<float>{sum}, 1.0f, rows, Into::add);
    }
  }
}

/// mu = sum / tokens, 0 where that is not finite.
inline void take_mean(Span<float> sum, float tokens) {
  for (float& element : sum) {
    element /= (std::max)(tokens, 1.0f);
    if (!(std::isfinite)(element)) element = 0;
  }
}

/// mu, one of bfloat16's numbers, so that dS_b mu is the product of what is rounded.
template <class L>
void take_mean_of_values(const Unit<L, BFloat16>& unit) {
  const Centers& centers = unit.memory.centers;
  float tokens = 0;
  for (Index b = 0; b < unit.keys.blocks; ++b) tokens += centers.tokens[b];
  weighted_row_sum<float>(centers.value, centers.sums(unit.keys.blocks), {}, Into::overwrite);
  take_mean(centers.value, tokens);
  for (float& mu : centers.value) mu = load(BFloat16(mu));
  pair_columns<float>(paired_rows(centers.paired_value.data, 1, centers.value.size),
                      {centers.value.data, centers.value.size});
}

/// The sums of |w_j|^2 and |w_j|^4 of a block, and its tokens.
template <class L>
void take_moments(const Unit<L, BFloat16>& unit, Index b, const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  Moments& moments = centers.moments[b];
  moments = {};
  centers.tokens[b] = static_cast<float>(unit.keys[b].tokens);
  const Span<float> squares = scratch.pairs.tile;
  for (const TokenTile& tile : unit.keys.tiles_of(b)) {
    with_values(unit, unit.keys, tile, scratch, [&]<class Stored>(const Rows<const Stored>& rows) {
      pair_functions_of<Stored>().row_distances(rows, tile.tokens, centers.value, squares.data);
    });
    for (Index token = 0; token < tile.tokens; ++token) {
      moments.squares += squares[token];
      moments.fourths += squares[token] * squares[token];
    }
  }
}

/// W_b, |sum_j v_j|^2, and the moments of a block.
template <class L>
void center_values(const Unit<L, BFloat16>& unit, Index b, const SlotScratch<float>& scratch) {
  const Centers& centers = unit.memory.centers;
  const Span<const float> mu = centers.value;
  const Span<float> sum = centers.sum(b);
  const Panel<const float> whole{sum.data, 1, sum.size, sum.size};
  take_moments(unit, b, scratch);
  centers.sum_squares[b] = inner_product<float>(whole, whole);
  copy_row(centers.center_and_sum(b).row(0), mu.data, mu.size);
  add_scaled_row(sum.data, -centers.tokens[b], mu.data, mu.size);
}

/// zeta of some blocks' first tiles: a mean of all features would be no better.
template <class L>
void take_mean_of_features(const Unit<L, BFloat16>& unit, const SlotScratch<float>& scratch) {
  constexpr Index enough = 512;  // tokens
  const Span<float> zeta = unit.memory.centers.feature;
  const Index block_tokens = (std::max)(unit.extents().block_tokens, Index{1});
  const Index count =
      (std::min)((std::max)(ceil_div(enough, block_tokens), Index{8}), unit.keys.blocks);
  float tokens = 0;
  std::fill_n(zeta.data, zeta.size, 0.0f);
  for (Index sample = 0; sample < count; ++sample) {
    const Index b = even_split(unit.keys.blocks, count, sample);
    if (unit.keys[b].tiles == 0) continue;
    const TokenTile& tile = unit.keys.tiles_of(b)[0];
    pack_keys(unit, tile, {zeta, {}}, Into::add, scratch);
    tokens += static_cast<float>(tile.tokens);
  }
  take_mean(zeta, tokens);
}

/// W~ of query blocks [first, first + rows), and the terms of is_local. `products` [rows, key
/// blocks] is scratch.
template <class L>
void mix_values(const Unit<L, BFloat16>& unit, Index matrix, Index first,
                const Panel<float>& products) {
  const Centers& centers = unit.memory.centers;
  const Panel<float> sums = centers.sums(unit.keys.blocks);
  const Index row_of_block = matrix * unit.extents().query_blocks + first;
  const Panel<float> mixed = centers.mixed.row_range(row_of_block, products.rows);
  const Panel<const float> mixing = unit.mixing(matrix).row_range(first, products.rows);
  mix<Sight::all, float>(mixing, first, sums, mixed);
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
    centers.terms[row_of_block + r] = {rounded, remaining};
  }
}

/// Whether a mix is so local that gradients are relative to much less than w. c_i = W~_i / n~_i +
/// mu is the mean that block i sees, and of its
///   rounded = sum_b m_ib^2 sum_j |w_j|^2,  remaining = sum_b m_ib^2 sum_j |v_j - c_i|^2
/// the first must not be much more in all blocks or in one. (Twice as much in all would give errors
/// of 4.2e-3 if no term stood out.)
template <class L>
bool is_local(const Unit<L, BFloat16>& unit) {
  double rounded = 0;
  double remaining = 0;
  for (Index matrix = 0; matrix < unit.extents().matrices; ++matrix)
    for (Index i = 0; i < unit.queries.blocks; ++i) {
      const RowTerms& terms = unit.memory.centers.terms[matrix * unit.extents().query_blocks + i];
      if (!(terms.rounded <= 4 * terms.remaining)) return true;
      rounded += static_cast<double>(terms.rounded);
      remaining += static_cast<double>(terms.remaining);
    }
  return !(rounded <= 1.15 * remaining);
}

/// Sums over a unit's key blocks.
struct Totals {
  double tokens = 0;
  double sum_squares = 0;
  double squares = 0;
  double fourths = 0;

  template <class L>
  explicit Totals(const Unit<L, BFloat16>& unit) {
    const Centers& centers = unit.memory.centers;
    for (Index b = 0; b < unit.keys.blocks; ++b) {
      tokens += static_cast<double>(centers.tokens[b]);
      if (centers.sum_squares.size > 0) sum_squares += static_cast<double>(centers.sum_squares[b]);
      squares += static_cast<double>(centers.moments[b].squares);
      fourths += static_cast<double>(centers.moments[b].fourths);
    }
  }
};

/// Whether nothing may be rounded: if a few tokens have most of w, since errors then do not average
/// out, or if there is one block, whose dmix cancels; or if moments are not floats that nothing has
/// been lost of.
inline bool are_few(const Totals& of, Index blocks) {
  const double enough = (std::min)(16.0, of.tokens / 4);
  return blocks < 2 || !(of.fourths > 1e-30 && of.fourths < 1e30) ||
         of.squares * of.squares < enough * of.fourths;
}

/// Whether blocks of v have means: of independent v both sides are equal; of blocks of a token they
/// are whatever these hold.
inline bool may_have_block_means(const Totals& of, Index blocks) {
  return of.tokens < 4 * static_cast<double>(blocks) || of.sum_squares > 1.5 * of.squares;
}

/// Adds v of a tile to a row of `scratch`, from which keep_value_sum takes sum_j v_j of a block: as
/// the forward pass does it, so that both passes decide alike.
inline void add_values(const VnniPanel& v, Index tokens, Into into, const PairScratch& scratch) {
  multiply(whole_panel(scratch.tile.data, 1, v.cols), LeftFactor::ones(tokens), v, into);
}
inline void keep_value_sum(const Centers& centers, Index b, const PairScratch& scratch) {
  copy_row(centers.sum(b).data, scratch.tile.data, centers.value.size);
}

/// Of some query blocks of each matrix, what they see of v and of its rounding errors.
struct SampledTerms {
  double blocks = 0;  // sum_b m_ib^2 |sum_j v_j|^2
  double tokens = 0;  // sum_b m_ib^2 sum_j |v_j|^2
  double seen = 0;    // |sum_b m_ib sum_j v_j|^2

  /// Whether values cancel in what queries see, as those of a ramp around 0 do in its mean: then
  /// the errors of m_ib S_b would show in y (and dq). Those of values with a mean of their own are
  /// relative to m_ib W_b. Of independent v both sides are equal.
  bool cancel() const { return !(blocks <= 1.6 * seen); }
  /// Whether queries see a mean of values, which would show in dq and dmix. Of independent v both
  /// sides are equal.
  bool have_mean() const { return !(seen <= 2 * tokens); }
};
template <class L>
SampledTerms sample_terms(const Unit<L, BFloat16>& unit) {
  SampledTerms terms;
  const Centers& centers = unit.memory.centers;
  const Index blocks = unit.queries.blocks;
  const Index count = (std::min)((std::max)(Index{4}, blocks / 4), blocks);
  for (Index matrix = 0; matrix < unit.extents().matrices && count > 0; ++matrix) {
    const Index step = blocks / count;  // of query blocks
    const Panel<const float> all = unit.mixing(matrix);
    const Panel<const float> mixing{all.row(step / 2), count, all.cols, step * all.stride};
    const Panel<float> mixed = centers.mixed.row_range(matrix * unit.extents().query_blocks, count);
    mix<Sight::all, float>(mixing, 0, centers.sums(all.cols), mixed);
    for (Index r = 0; r < count; ++r) {
      const float* const weights = mixing.row(r);
      float row_tokens = 0;
      float of_blocks = 0;
      float of_tokens = 0;
      for (Index b = 0; b < mixing.cols; ++b) {
        row_tokens += weights[b] * centers.tokens[b];
        of_blocks += weights[b] * weights[b] * centers.sum_squares[b];
        of_tokens += weights[b] * weights[b] * centers.moments[b].squares;
      }
      add_scaled_row(mixed.row(r), row_tokens, centers.value.data, mixed.cols);
      // y and its gradients are relative to denominators.
      const float scale = normalizes<L> ? (row_tokens > 0 ? 1 / row_tokens : 0.0f) : 1.0f;
      const auto square = static_cast<double>(scale * scale);
      const Panel<const float> row = mixed.row_range(r, 1);
      terms.blocks += square * static_cast<double>(of_blocks);
      terms.tokens += square * static_cast<double>(of_tokens);
      terms.seen += square * static_cast<double>(inner_product<float>(row, row));
    }
  }
  return terms;
}

/// Sums of columns that hold a NaN or an infinity become 0: it must not show in other columns.
inline void drop_columns(const Panel<float>& sums) {
  for (Index c = 0; c < sums.cols; ++c) {
    bool finite = true;
    for (Index b = 0; b < sums.rows; ++b) finite = finite && (std::isfinite)(sums.row(b)[c]);
    for (Index b = 0; b < sums.rows && !finite; ++b) sums.row(b)[c] = 0;
  }
}

/// Whether rounding would show in y, mu being 0: values cancel, or a block has most of what is
/// rounded, whose errors then do not average out. Not known of values so large that nothing is left
/// of sums.
template <class L>
bool rounding_shows(const Unit<L, BFloat16>& unit) {
  const Centers& centers = unit.memory.centers;
  const Panel<float> sums = centers.sums(unit.keys.blocks);
  double squares = 0;
  double fourths = 0;
  const auto measure = [&] {
    pair_functions_of<float>().row_distances(sums.placed(), sums.rows, centers.value,
                                             centers.sum_squares.data);
    squares = fourths = 0;
    for (Index b = 0; b < sums.rows; ++b) {
      const auto square = static_cast<double>(centers.sum_squares[b]);
      squares += square;
      fourths += square * square;
    }
  };
  measure();
  if (!(std::isfinite)(squares)) {
    drop_columns(sums);
    measure();
  }
  if (!(fourths > 0 && fourths < 1e60)) return false;
  if (unit.keys.blocks > 1 && squares * squares < 1.5 * fourths) return true;
  return sample_terms(unit).cancel();
}

/// Whether rounding shows in gradients without a normalizer.
template <class L>
bool rounding_shows_in_gradients(const Unit<L, BFloat16>& unit, const ExecutorRef& loop) {
  const Plan<L, float>& plan = unit.plan;
  const Centers& centers = unit.memory.centers;
  std::fill_n(centers.value.data, centers.value.size, 0.0f);
  loop.parallel_for(unit.keys.blocks, [&](Index b, Index slot) {
    const SlotScratch<float>& scratch = plan.scratch[slot];
    take_moments(unit, b, scratch);
    if (is_causal<L> || plan.mixes_in_float) return;
    std::fill_n(scratch.pairs.tile.data, centers.value.size, 0.0f);
    Into into = Into::overwrite;
    for (const TokenTile& tile : unit.keys.tiles_of(b)) {
      add_values(pack_values(unit, unit.keys, tile, scratch, scratch.pairs.values), tile.tokens,
                 into, scratch.pairs);
      into = Into::add;
    }
    keep_value_sum(centers, b, scratch.pairs);
  });
  return are_few(Totals(unit), unit.keys.blocks) ||
         (!is_causal<L> && !plan.mixes_in_float && rounding_shows(unit));
}

/// What the unit's backward pass rounds; if that is centered, mu, zeta, W and W~ are there. Without
/// a normalizer mu is 0.
template <class L>
Rounding center_unit(const Unit<L, BFloat16>& unit, const ExecutorRef& loop) {
  const Plan<L, float>& plan = unit.plan;
  const Index blocks = unit.keys.blocks;
  if constexpr (!normalizes<L>) {
    return rounding_shows_in_gradients(unit, loop) ? Rounding::nothing : Rounding::plain;
  } else {
    loop.parallel_for(blocks,
                      [&](Index b, Index slot) { sum_up_values(unit, b, plan.scratch[slot]); });
    loop.parallel_for(1, [&](Index, Index) { take_mean_of_values(unit); });
    loop.parallel_for(blocks,
                      [&](Index b, Index slot) { center_values(unit, b, plan.scratch[slot]); });
    const Totals totals(unit);
    if (are_few(totals, blocks)) return Rounding::nothing;
    if (!may_have_block_means(totals, blocks)) {
      const SampledTerms terms = sample_terms(unit);
      if (!terms.cancel() && !terms.have_mean()) return Rounding::plain;
    }
    loop.parallel_for(1,
                      [&](Index, Index slot) { take_mean_of_features(unit, plan.scratch[slot]); });
    const Index groups = ceil_div(unit.queries.blocks, Centers::rows_at_once);
    loop.parallel_for(plan.extents.matrices * groups, [&](Index task, Index slot) {
      const Index first = task % groups * Centers::rows_at_once;
      const Index rows = (std::min)(Centers::rows_at_once, unit.queries.blocks - first);
      mix_values(unit, task / groups, first,
                 panel(plan.scratch[slot].pairs.products.data, rows, blocks));
    });
    return is_local(unit) ? Rounding::nothing : Rounding::centered;
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
inline void subtract_center(const Centers& centers, const VnniPanel& grad_transposed,
                            Span<float> grad_key_sum, const PairScratch& scratch) {
  const Panel<float> product = whole_panel(scratch.tile.data, 1, grad_transposed.cols);
  multiply(product, paired_rows(centers.paired_value.data, 1, centers.value.size), grad_transposed,
           Into::overwrite);
  for (Index c = 0; c < grad_key_sum.size; ++c) grad_key_sum[c] -= product.row(0)[c];
}

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
