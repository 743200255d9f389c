// SPDX-License-Identifier: MIT
// Tiles of tokens at work on a slot: their panels, the keys of their own block, denominators, and
// prefetches of the next tile. Which gradients a backward pass is asked for.
#pragma once

#include <mhla/cpu/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// A block that a mask has emptied has empty sums.
template <class A>
void set_zero(const Panel<A>& summary, Span<A> key_sum) {
  set_zero(summary);
  std::fill_n(key_sum.data, key_sum.size, A(0));
}

/// A query head's part of a [group_size, blocks, block tokens] array (MixedProduct).
template <class A>
Panel<A> head_offsets(const Extents& e, Span<A> array, Index g) {
  return panel(array.data + g * e.query_blocks * e.block_tokens, e.query_blocks, e.block_tokens);
}
/// A tile's part of it.
template <class A>
Span<A> tile_offsets(const Extents& e, Span<A> array, Index g, Index block, const TokenTile& tile) {
  return {head_offsets(e, array, g).row(block) + tile.offset, tile.tokens};
}

/// The keys and values of a causal query tile's own block, in the scratch of a slot.
template <class A>
struct OwnTile : FeaturePanels<A> {  // m_ii phi(k)
  Panel<const A> values;             // v
  Panel<A> key_sums;                 // p_t; no rows without a normalizer
  Panel<A> scores;                   // scratch
};

/// A tile of query block `block` on a slot, for one matrix and all its query heads in turn.
template <class A, class Summary = Panel<A>>
struct QueryTile {
  Index matrix;
  Index block;
  const UnitBlocks& queries;
  Index index;                  // of the tile in the table
  const SummaryRows<A>& mixed;  // S~ and z~ of its group of blocks; in pairs z~ alone
  const SlotScratch<A>& scratch;
  Summary summary;   // S~ of its block, as products take it; under Causal P
  OwnTile<A> own{};  // under Causal

  const TokenTile& tile() const { return queries.table.tiles[index]; }
  /// Which of its block's tiles it is, of how many.
  Index part() const { return index - queries[block].first_tile; }
  Index parts() const { return queries[block].tiles; }
};

/// Packs a query tile's own keys, and advances z~_i to p of the tile's last token.
template <class L, class T, class A, class Summary>
OwnTile<A> pack_own_keys(const Unit<L, T>& unit, const QueryTile<A, Summary>& at) {
  const Extents& e = unit.extents();
  const SlotScratch<A>& scratch = at.scratch;
  const TokenTile& tile = at.tile();
  const A own_weight = unit.own_weight(at.matrix, at.block);
  const FeaturePanels<A> keys =
      pack_features(unit.own_key_features(tile, own_weight), scratch, scratch.own);
  const OwnTile<A> own{
      keys,
      {},
      panel(scratch.own.key_sums.data, normalizes<L> ? tile.tokens : 0, e.feature_dim),
      panel(scratch.own.scores.data, tile.tokens, tile.tokens)};
  if constexpr (normalizes<L>) {
    if (tile.offset == 0) std::fill_n(scratch.key_sum_rest.data, e.feature_dim, A(0));
    add_rows<A>({at.mixed.key_sum(at.block), scratch.key_sum_rest}, A(1), own.features, Into::add,
                own.key_sums);
  }
  return own;
}

/// The denominators of a tile of query head g; empty without a normalizer.
template <class L, class T, class A, class Summary>
Span<const A> tile_denominators(const Unit<L, T>& unit, const QueryTile<A, Summary>& at, Index g,
                                const Panel<A>& features) {
  if constexpr (mixes_key_sums<L>) {
    const Span<A> denominators{at.scratch.denominators.data, features.rows};
    const Span<A> z = at.mixed.key_sum(at.block);
    mixed_key_sum_denominators<A>(
        features, is_causal_within_block<L> ? at.own.key_sums : Panel<A>{z.data, 1, z.size, 0},
        static_cast<A>(unit.operands.variant.normalizer.epsilon), denominators);
    return denominators;
  } else if constexpr (mixes_products<L>) {
    return tile_offsets(unit.extents(), unit.memory.denominators, g, at.block, at.tile());
  } else {
    return {};
  }
}

/// U = dy / den of a tile of query head g.
template <class L, class T, class A>
Panel<const A> pack_grad_numerators(const Unit<L, T>& unit, Index g,
                                    const TensorView<const T, 4>& dy, const TokenTile& tile,
                                    Span<const A> denominators, const SlotScratch<A>& scratch) {
  const BlockTable& table = unit.queries.table;
  const TokenRows<const T> rows = unit.query_rows(g, dy);
  if (denominators.size == 0) return readable_panel<T>(table, tile, rows, scratch.values);
  const Panel<A> u = panel(scratch.values.data, tile.tokens, unit.extents().value_dim);
  const Span<A> inverses{scratch.inverses.data, denominators.size};
  const bool invertible = invert<A>(denominators, inverses);
  gather<T, A>(table, tile, rows, invertible ? inverses : Span<A>{}, u);
  if (!invertible) divide_rows<A>(u, denominators);
  return u;
}

/// The gradients of a key tile: dK^r, dK and dV.
template <class A>
struct KeyGradients {
  Panel<A> rotated;
  Panel<A> features;  // under Causal with a normalizer; else dz_b for all tokens
  Panel<A> values;
};

/// A tile of key block `block` at work on a slot, its factors, and what its gradients are summed
/// in.
template <class A, class Packed = Panel<const A>>
struct KeyTile {
  Index block;
  const TokenTile& tile;
  bool first;  // of its block
  bool last;
  const SlotScratch<A>& scratch;
  KeyGradients<A> gradients;
  FeaturePanels<A> features{};  // phi(k), and the same rotated; in pairs under Causal alone
  Packed keys{};                // phi(k), rotated
  Packed values{};              // v
};

/// The tokens of one (batch, head) of a tensor as memory, whatever their type.
struct TokenBytes {
  const void* data;
  Index element_bytes;
  Index dim;
  Index token_stride;
  Index stride;

  template <class T>
  TokenBytes(const TokenRows<T>& tokens)  // NOLINT: the same without the type
      : data(tokens.data),
        element_bytes(static_cast<Index>(sizeof(T))),
        dim(tokens.dim),
        token_stride(tokens.token_stride),
        stride(tokens.stride) {}
  bool lies_in_columns() const { return token_stride == 1 && stride != 1; }
};

/// What is prefetched during a tile's work: the rows of another tile, or its columns if the first
/// tensor stores the tokens of a run contiguously; of the other tensors those with the same layout.
/// Nothing if `index` is outside the sequence's tiles.
MHLA_OUT_OF_LINE inline Prefetch prefetch_tile(const UnitBlocks& of, Index index,
                                               std::initializer_list<TokenBytes> tensors) {
  const BlockTable& table = of.table;
  const BlockSpan& last = of[of.blocks - 1];
  if (index < of[0].first_tile || index >= last.first_tile + last.tiles) return {};
  const TokenTile& tile = table.tiles[index];
  const Index* const places = table.places_of(tile);
  const TokenBytes& first = *tensors.begin();
  const bool by_columns = first.lies_in_columns() && tile.runs == 1;
  Prefetch prefetch = by_columns ? Prefetch(nullptr, first.dim) : Prefetch(places, tile.tokens);
  for (const TokenBytes& tokens : tensors) {
    const Index bytes = tokens.element_bytes;
    if (tokens.data == nullptr) continue;
    if (by_columns && tokens.lies_in_columns())
      prefetch.add(static_cast<const char*>(tokens.data) + places[0] * bytes, tokens.stride * bytes,
                   tile.tokens * bytes, (std::min)(tokens.dim, first.dim));
    if (!by_columns && tokens.stride == 1)
      prefetch.add(tokens.data, tokens.token_stride * bytes, tokens.dim * bytes);
  }
  return prefetch;
}

/// Part `part` of `parts` of the summary of row `row`, if there are more summaries than the cache
/// holds: the tiles of one block prefetch the next block's summary while they run.
template <class A>
void prefetch_summary(const SummaryRows<A>& rows, Index row, Index part, Index parts,
                      Prefetch& prefetch) {
  const Panel<A>& summaries = rows.summaries;
  if (summaries.rows * summaries.stride <= cached_summaries || row < rows.first ||
      row >= rows.first + summaries.rows)
    return;
  const Index begin = even_split(summaries.cols, parts, part);
  const Index end = even_split(summaries.cols, parts, part + 1);
  prefetch.add_piece(summaries.row(row - rows.first) + begin,
                     (end - begin) * static_cast<Index>(sizeof(A)));
}

/// Which gradients a backward pass is to compute, and what they need: work for unwanted gradients
/// is skipped, and the rest has the same bits.
template <class L, class T>
struct BackwardRequest {
  TensorView<const T, 4> dy;
  GradientViews<T> gradients;
  Update update;

  bool query() const { return gradients.query.wanted; }
  bool keys() const { return gradients.key.wanted || gradients.value.wanted; }
  bool mixing() const { return gradients.mix.wanted; }
  /// dS~: needed for dk, dv and dmix.
  bool mixed_summaries() const { return keys() || mixing(); }
  /// What own queries send back to keys' features: needed for dk and m_ii's gradient.
  bool own_keys() const { return gradients.key.wanted || mixing(); }
  /// dQ^r = U S~^T: needed for dq, and for the gradient of the denominators, which all but dv need.
  bool grad_features() const { return query() || (normalizes<L> && own_keys()); }
};

/// dq of a tile of query head g, if it is wanted.
template <class L, class T, class A>
void unpack_query_gradient(const Unit<L, T>& unit, const BackwardRequest<L, T>& request, Index g,
                           const TokenTile& tile, const FeatureGradients<A>& gradients,
                           const RowBuffers<A>& row) {
  if (request.query())
    unpack_feature_gradient(unit.query_features(g, tile), gradients,
                            unit.query_rows(g, request.gradients.query.view), request.update, row);
}

}  // namespace cpu

MHLA_NAMESPACE_END
