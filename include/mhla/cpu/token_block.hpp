// SPDX-License-Identifier: MIT
// Token tiles: the rows of a block's tokens are gathered into a packed panel, through phi and the
// rotation, and gradients are scattered back. Units read and write tensors by this alone. A tile at
// work on a slot: its own block's keys, its denominators, and prefetches of the next tile.
#pragma once

#include <mhla/cpu/kernels_elsewhere.hpp>
#include <mhla/cpu/plan.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu {

/// Calls visit(run, row) for the runs of a tile, whose tokens are its rows from `row` on.
template <class Visitor>
void for_each_run(const BlockTable& table, const TokenTile& tile, const Visitor& visit) {
  Index row = 0;
  for (Index r = tile.first_run; r < tile.first_run + tile.runs; ++r) {
    visit(table.runs[r], row);
    row += table.runs[r].count;
  }
}

/// Whether kernels that compute in A read and write rows of storage type T in place.
template <class A, class T>
bool is_in_place(const TokenRows<T>& tokens) {
  using Stored = std::remove_const_t<T>;
  constexpr bool is_float_in_16_bits =
      std::is_same_v<A, float> &&
      (std::is_same_v<Stored, BFloat16> || std::is_same_v<Stored, Half>);
  return (std::is_same_v<Stored, A> || is_float_in_16_bits) && tokens.stride == 1;
}
/// Whether products do.
template <class A, class T>
bool is_in_place_of_products(const TokenRows<T>& tokens) {
  return std::is_same_v<std::remove_const_t<T>, A> && is_in_place<A>(tokens);
}
/// The rows of a tile where they lie.
template <class T>
Rows<T> in_place(const BlockTable& table, const TokenTile& tile, const TokenRows<T>& tokens) {
  return {tokens.data, tokens.token_stride, table.places_of(tile)};
}
/// The rows of a tile where they lie, as rows of A; none for another type.
template <class A, class T>
Rows<A> in_place_of_products(const BlockTable& table, const TokenTile& tile,
                             const TokenRows<T>& tokens) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, std::remove_const_t<A>>) {
    return in_place(table, tile, tokens);
  } else {
    return {};
  }
}

/// Packs the rows of a tile, each times its weight if there are weights.
//                                                                           // [tile tokens, dim]
template <class T, class A>
MHLA_OUT_OF_LINE void gather(const BlockTable& table, const TokenTile& tile,
                             const TokenRows<const T>& tokens, Span<const A> weights,
                             const Panel<A>& packed) {
  if (is_in_place<A>(tokens))
    return weighted_rows<A, T>(packed, weights, in_place(table, tile, tokens));
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    gather_strided<A, T>(packed.row_range(row, run.count), tokens.strided(run));
  });
  if (weights.size > 0) weighted_rows<A, A>(packed, weights, packed.placed());
}

/// The rows of a tile: in place, or gathered into `buffer`.
template <class T, class A>
Rows<const A> readable_rows(const BlockTable& table, const TokenTile& tile,
                            const TokenRows<const T>& tokens, Span<A> buffer) {
  if (is_in_place_of_products<A>(tokens)) return in_place_of_products<const A>(table, tile, tokens);
  const Panel<A> packed = panel(buffer.data, tile.tokens, tokens.dim);
  gather(table, tile, tokens, {}, packed);
  return {packed.data, packed.stride};
}

/// A tile of consecutive tokens as a panel in place, if products can use it; no rows otherwise.
template <class A, class T>
Panel<A> panel_in_place(const BlockTable& table, const TokenTile& tile,
                        const TokenRows<T>& tokens) {
  if (tile.runs != 1 || !is_in_place_of_products<std::remove_const_t<A>>(tokens)) return {};
  const Rows<A> rows = in_place_of_products<A>(table, tile, tokens);
  return {rows[0], tile.tokens, tokens.dim, rows.stride};
}

/// A tile as a panel: in place, or gathered into `buffer`.
template <class T, class A>
Panel<const A> readable_panel(const BlockTable& table, const TokenTile& tile,
                              const TokenRows<const T>& tokens, Span<A> buffer) {
  const Panel<const A> there = panel_in_place<const A>(table, tile, tokens);
  if (there.rows > 0) return there;
  const Panel<A> packed = panel(buffer.data, tile.tokens, tokens.dim);
  gather(table, tile, tokens, {}, packed);
  return packed;
}

/// The adjoint of `gather`; writes every result.
template <class T, class A>
MHLA_OUT_OF_LINE void scatter(const BlockTable& table, const TokenTile& tile,
                              const Panel<const A>& packed, Span<const A> weights,
                              const TokenRows<T>& tokens, Update update) {
  if (is_in_place<A>(tokens))
    return store_rows<T, A>(in_place(table, tile, tokens), weights, packed, update);
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    scatter_strided<T, A>(
        tokens.strided(run),
        {weights.data + (weights.size > 0 ? row : 0), (std::min)(weights.size, run.count)},
        packed.row_range(row, run.count), update);
  });
}

/// R or R^T of the rows of a tile.
template <class A>
MHLA_OUT_OF_LINE void rotate_rows(const RotationTable<A>& rotation, const BlockTable& table,
                                  const TokenTile& tile, const Panel<A>& rows, Turn turn) {
  for_each_run(table, tile, [&](const TokenRun& run, Index row) {
    (rotation.*rotation.turn_rows)(rows.row_range(row, run.count), run.coordinate, turn);
  });
}

/// What the features of a tile, s R phi(x), are computed from.
template <class Map, class T, class A>
struct TileFeatures {
  const Map& map;
  const RotationTable<A>& rotation;
  A scale;
  const BlockTable& table;
  const TokenTile& tile;
  TokenRows<const T> tokens;
};

/// s phi(q) of a tile of query head g.
template <class L, class T, class Map = typename L::FeatureMapType>
TileFeatures<Map, T, Accumulator<T>> query_features(const Unit<L, T>& unit, Index g,
                                                    const TokenTile& tile) {
  return {unit.operands.variant.feature_map,
          unit.plan.rotation,
          unit.operands.scale(),
          unit.queries.table,
          tile,
          unit.query_rows(g, unit.operands.q)};
}
/// phi(k) of a tile of `of`, the unit's keys or, under Causal, its queries, times a weight.
template <class L, class T, class A = Accumulator<T>, class Map = typename L::FeatureMapType>
TileFeatures<Map, T, A> key_features(const Unit<L, T>& unit, const UnitBlocks& of,
                                     const TokenTile& tile, std::type_identity_t<A> weight) {
  return {unit.operands.variant.feature_map, unit.plan.rotation, weight, of.table, tile,
          unit.key_rows(unit.operands.k)};
}
/// phi(k) of a key tile.
template <class L, class T, class A = Accumulator<T>, class Map = typename L::FeatureMapType>
TileFeatures<Map, T, A> key_features(const Unit<L, T>& unit, const TokenTile& tile) {
  return key_features(unit, unit.keys, tile, A(1));
}

/// Panels of a tile's features, [tile tokens, feature_dim]: the same one twice if there is no
/// rotation, or if unrotated features are not needed.
template <class A>
struct FeaturePanels {
  Panel<A> features;
  Panel<A> rotated;
};

/// features = s phi(x), rotated = s R phi(x). One panel for both holds the latter.
template <class Map, class T, class A>
MHLA_OUT_OF_LINE void pack_features(const TileFeatures<Map, T, A>& of, const FeaturePanels<A>& to,
                                    const RowBuffers<A>& buffers) {
  const auto& [map, rotation, scale, table, tile, tokens] = of;
  const auto& [features, rotated] = to;
  if (ElementwiseFeatureMap<Map> && is_in_place<A>(tokens)) {
    if constexpr (ElementwiseFeatureMap<Map>)
      map_rows<Map, T>(map, scale, in_place(table, tile, tokens), features);
  } else {
    const Rows<const A> x = readable_rows<T, A>(table, tile, tokens, buffers.input);
    if constexpr (ElementwiseFeatureMap<Map>) {
      map_rows<Map, A>(map, scale, x, features);
    } else {
      for (Index r = 0; r < features.rows; ++r) {
        A* const out = features.row(r);
        map.value(Span<const A>{x[r], tokens.dim}, Span<A>{out, features.cols});
        for (Index c = 0; c < features.cols; ++c) out[c] *= scale;
      }
    }
  }
  if (!rotation.rotates()) return;
  if (rotated.data != features.data)
    for (Index r = 0; r < features.rows; ++r)
      copy_row(rotated.row(r), features.row(r), features.cols);
  rotate_rows(rotation, table, tile, rotated, Turn::forward);
}

/// Packs the features of a tile into panels `in`, by default those of the slot.
template <class Map, class T, class A>
FeaturePanels<A> pack_features(const TileFeatures<Map, T, A>& of, const SlotScratch<A>& scratch,
                               const TilePanels<A>& in) {
  const Index dim = feature_dim(of.map, of.tokens.dim);
  const FeaturePanels<A> to{panel(in.features.data, of.tile.tokens, dim),
                            panel(in.rotated.data, of.tile.tokens, dim)};
  pack_features(of, to, scratch.row);
  return to;
}
template <class Map, class T, class A>
FeaturePanels<A> pack_features(const TileFeatures<Map, T, A>& of, const SlotScratch<A>& scratch) {
  return pack_features(of, scratch, scratch);
}

/// The gradients of a tile's scaled features: of the rotated ones, which is overwritten, and of the
/// unrotated ones, which the normalizer uses: weight_t times row t of `unrotated`, or one row for
/// all.
template <class A>
struct FeatureGradients {
  Panel<A> rotated;           // [tile tokens, feature_dim]
  Span<const A> weights{};    // [tile tokens]; empty: all 1
  Rows<const A> unrotated{};  // rows of feature_dim; null without a normalizer
};

/// One row for every token.
template <class A>
Rows<const A> every_row(Span<A> row) {
  return {row.data, 0};
}

/// The adjoint of `pack_features`: dx (+)= J^T s (R^T g^r + g), J of phi at x.
template <class Map, class T, class A>
void unpack_feature_gradient(const TileFeatures<Map, T, A>& of,
                             const FeatureGradients<A>& gradients, const TokenRows<T>& destination,
                             Update update, const RowBuffers<A>& buffers) {
  const auto& [map, rotation, scale, table, tile, tokens] = of;
  const Panel<A>& g = gradients.rotated;
  if (rotation.rotates()) rotate_rows(rotation, table, tile, g, Turn::back);
  if constexpr (ElementwiseFeatureMap<Map>)
    if (is_in_place<A>(tokens) && is_in_place<A>(destination))
      return unmap_rows<Map, T>(map, scale, in_place(table, tile, tokens), g, gradients.weights,
                                gradients.unrotated, in_place(table, tile, destination), update);
  const Rows<const A> x = readable_rows<T, A>(table, tile, tokens, buffers.input);
  const Panel<A> dx = panel(buffers.gradient.data, tile.tokens, tokens.dim);
  if constexpr (ElementwiseFeatureMap<Map>) {
    unmap_rows<Map, A>(map, scale, x, g, gradients.weights, gradients.unrotated, dx.placed(),
                       Update::overwrite);
  } else {
    for (Index r = 0; r < g.rows; ++r) {
      if (gradients.unrotated.data != nullptr)
        add_scaled_row(g.row(r), gradients.weights.size > 0 ? gradients.weights[r] : A(1),
                       gradients.unrotated[r], g.cols);
      for (Index c = 0; c < g.cols; ++c) g.row(r)[c] *= scale;
      map.vjp(Span<const A>{x[r], tokens.dim}, Span<const A>{g.row(r), g.cols},
              Span<A>{dx.row(r), dx.cols});
    }
  }
  scatter<T, A>(table, tile, dx, {}, destination, update);
}

/// The sums of a block without tokens: 0.
template <class A>
void set_zero(const Panel<A>& summary, Span<A> key_sum) {
  set_zero(summary);
  std::fill_n(key_sum.data, key_sum.size, A(0));
}

/// A query head's part of a [group_size, blocks, block tokens] array of UnitMemory.
template <class A>
Panel<A> head_offsets(const Extents& e, Span<A> array, Index g) {
  return panel(array.data + g * e.query_blocks * e.block_tokens, e.query_blocks, e.block_tokens);
}
/// A tile's part of it.
template <class A>
Span<A> tile_offsets(const Extents& e, Span<A> array, Index g, Index block, const TokenTile& tile) {
  return {head_offsets(e, array, g).row(block) + tile.offset, tile.tokens};
}

/// A causal query tile's own keys and values, in the scratch of a slot.
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
      pack_features(key_features(unit, unit.queries, tile, own_weight), scratch, scratch.own);
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

/// dq of a tile of query head g, if it is wanted.
template <class L, class T, class A>
void unpack_query_gradient(const Unit<L, T>& unit, const BackwardRequest<L, T>& request, Index g,
                           const TokenTile& tile, const FeatureGradients<A>& gradients,
                           const RowBuffers<A>& row) {
  if (request.query())
    unpack_feature_gradient(query_features(unit, g, tile), gradients,
                            unit.query_rows(g, request.gradients.query.view), request.update, row);
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

/// Part `part` of `parts` of the summary of block `block`, if there are more summaries than the
/// cache holds: the tiles of one block prefetch the next block's summary while they run.
template <class A>
void prefetch_summary(const SummaryRows<A>& rows, Index block, Index part, Index parts,
                      Prefetch& prefetch) {
  const Panel<A>& summaries = rows.summaries;
  if (summaries.rows * summaries.stride <= cached_summaries || block < rows.first ||
      block >= rows.first + summaries.rows)
    return;
  const Index begin = even_split(summaries.cols, parts, part);
  const Index end = even_split(summaries.cols, parts, part + 1);
  prefetch.add_piece(summaries.row(block - rows.first) + begin,
                     (end - begin) * static_cast<Index>(sizeof(A)));
}

}  // namespace cpu

MHLA_NAMESPACE_END
