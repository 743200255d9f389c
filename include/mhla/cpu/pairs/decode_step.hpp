// SPDX-License-Identifier: MIT
// What the queries of a decoder's tile read (decode_step.hpp) with Precision::fast: factors rounded
// to bfloat16, sums in float.
//
//   num = Q^r P_i + (m_i,i-1 Q^r K^r_i-1^T) V_i-1 + tril(m_ii Q^r K^r_i^T) V_i
//
// Q^r, K^r, P_i and the scores in brackets are rounded; the state that a step leaves is not.
#pragma once

#include <mhla/cpu/decode_step.hpp>
#include <mhla/cpu/pairs/heavy_tokens.hpp>
#include <mhla/cpu/pairs/token_block.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::pairs {

/// For fewer queries it costs more to round what they read than it saves.
inline constexpr Index least_decode_tile = 16;

/// Panels of one tile; one for every slot. Of the two blocks whose tokens are kept as such, even
/// and odd ones alternate, as in DecodeUnit.
struct DecodeSlot : cpu::DecodeSlot<float> {
  Span<Pair> feature_rows;      // [block tokens or value_dim, halves of features]
  Span<Pair> mixture;           // [halves of features, value_dim]: P_i
  Span<Pair> paired_keys[2];    // [halves of features, block tokens]: K^r^T
  Span<Pair> values[2];         // [pairs of block tokens, value_dim]
  Span<float> squares[2];       // [block tokens]: |v|^2
  Span<Pair> paired_scores[2];  // [tile, pairs of block tokens]
  Span<float> row_weights;      // [tile]
  Span<float> sums;             // [tile, value_dim]

  DecodeSlot(Arena& arena, const DecodeExtents& e, Index key_dim, bool recurrent)
      : cpu::DecodeSlot<float>(arena, e, key_dim, recurrent) {
    if (!e.rounds) return;
    const Index n = e.block_tokens;
    const Index tile = (std::min)(n, max_decode_tile);
    const Index half = pairs_of(e.feature_dim);
    const Index columns = whole_columns(e.value_dim);
    feature_rows = arena.take<Pair>(checked_mul((std::max)(n, e.value_dim), half));
    mixture = arena.take<Pair>(checked_mul(half, columns));
    for (int parity = 0; parity < 2; ++parity) {
      paired_keys[parity] = arena.take<Pair>(checked_mul(half, whole_columns(n)));
      values[parity] = arena.take<Pair>(checked_mul(pairs_of(n), columns));
      squares[parity] = arena.take<float>(n);
      paired_scores[parity] = arena.take<Pair>(checked_mul(tile, pairs_of(n)));
    }
    row_weights = arena.take<float>(tile);
    sums = arena.take<float>(checked_mul(tile, columns));
  }

  /// The first `tokens` tokens of a block.
  VnniPanel keys_of(const DecodeExtents& e, int parity, Index tokens) const {
    return pair_panel(paired_keys[parity].data, e.feature_dim, tokens);
  }
  VnniPanel values_of(const DecodeExtents& e, int parity, Index tokens) const {
    return pair_panel(values[parity].data, tokens, e.value_dim);
  }
};

/// Tokens of the closing block that a tile reads, and of the open one.
inline Index closing_tokens(const DecodeExtents& e, const DecodeTile& tile) {
  return tile.block == 0 ? 0 : e.block_tokens;
}
inline Index open_tokens(const DecodeTile& tile) { return tile.first + tile.tokens; }

/// Rounds the keys and values that a tile reads.
inline void round_kept_tokens(const DecodeExtents& e, const DecodeUnit<float>& unit,
                              const DecodeTile& tile, const DecodeSlot& slot) {
  const auto round_block = [&](int parity, Index tokens) {
    const Panel<float> values = unit.value_rows(e, parity, 0, tokens);
    const Span<float> squares{slot.squares[parity].data, tokens};
    transposed(pair_features(unit.key_rows(e, parity, 0, tokens), slot.feature_rows),
               slot.paired_keys[parity]);
    pair_tokens(values, slot.values[parity]);
    row_products<float>(squares, values, values);
    leave_out_non_finite(squares, values.cols, [&](Index t, Index c) { return values.row(t)[c]; });
  };
  round_block(tile.closing(), closing_tokens(e, tile));
  round_block(tile.open_turn(), open_tokens(tile));
}

/// Rounds P_i of one matrix.
inline void round_mixture(const DecodeExtents& e, const DecodeUnit<float>& unit,
                          const DecodeTile& tile, Index matrix, const DecodeSlot& slot) {
  const float* const mixed = unit.mixed_summary(e, tile.open_turn(), matrix);
  transposed(pair_features({mixed, e.value_dim, e.feature_dim, e.feature_dim}, slot.feature_rows),
             slot.mixture);
}

/// num of a tile's queries, [tile tokens, value_dim], from what has been rounded. Where one token
/// has most of |v|^2, the rounding of its score, which would not average out, is taken back.
inline Panel<float> read_out_decode_tile(const DecodeExtents& e, const DecodeUnit<float>& unit,
                                         const DecodeTile& tile,
                                         const DecodeWeights<float>& weights,
                                         const Panel<const float>& rotated_queries,
                                         const DecodeSlot& slot) {
  const int closing = tile.closing();
  const int open = tile.open_turn();
  const Index closed = closing_tokens(e, tile);
  const PairedRows queries = pair_features(rotated_queries, slot.feature_rows);
  const Panel<float> sums = whole_panel(slot.sums.data, tile.tokens, e.value_dim);
  set_zero(sums);
  if (tile.block >= 2)  // P_0 and P_1 are empty sums
    multiply(sums, queries, pair_panel(slot.mixture.data, e.feature_dim, e.value_dim),
             Into::overwrite);
  const auto scores_of = [&](int parity, Index tokens, float weight) {
    const Span<float> rows{slot.row_weights.data, tile.tokens};
    std::fill_n(rows.data, rows.size, weight);
    return multiply_scores(slot.paired_scores[parity], queries, slot.keys_of(e, parity, tokens),
                           rows);
  };
  PairedRows scores[2];
  if (closed > 0) {
    scores[closing] = scores_of(closing, closed, weights.closing);
    multiply(sums, scores[closing], slot.values_of(e, closing, closed), Into::add);
  }
  scores[open] = scores_of(open, open_tokens(tile), weights.open);
  add_triangle(sums, scores[open], slot.values_of(e, open, open_tokens(tile)), {tile.first + 1});

  const Panel<float> numerators = sums.col_range(0, e.value_dim);
  const auto weight_of = [&](Index t) { return t < closed ? weights.closing : weights.open; };
  const auto square_of = [&](Index t) {
    const float weight = weight_of(t);
    return weight * weight *
           (t < closed ? slot.squares[closing][t] : slot.squares[open][t - closed]);
  };
  for_each_heavy_token(tile.tokens, closed + tile.first + 1, square_of, [&](Index r, Index t) {
    const int parity = t < closed ? closing : open;
    const Index row = t < closed ? t : t - closed;
    const auto* const rounded = reinterpret_cast<const BFloat16*>(scores[parity].row(r));
    const float lost = weight_of(t) * inner_product<float>(rotated_queries.row_range(r, 1),
                                                           unit.key_rows(e, parity, row, 1)) -
                       load(rounded[row]);
    const Panel<float> value = unit.value_rows(e, parity, row, 1);
    take_back(lost, {numerators.row(r), e.value_dim}, [&](Index c) { return value.data[c]; });
  });
  return numerators;
}

}  // namespace cpu::pairs

MHLA_NAMESPACE_END
