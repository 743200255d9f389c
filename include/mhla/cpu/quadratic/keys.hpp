// SPDX-License-Identifier: MIT
// A unit's keys and values as the quadratic path takes them.
#pragma once

#include <mhla/core/config.hpp>
#include <mhla/core/executor.hpp>
#include <mhla/core/index.hpp>
#include <mhla/cpu/plan.hpp>
#include <mhla/cpu/quadratic/memory.hpp>
#include <mhla/cpu/quadratic/scores.hpp>
#include <mhla/cpu/tiles.hpp>

MHLA_NAMESPACE_BEGIN

namespace cpu::quadratic {

/// Rows of [key tokens, columns], of a unit whose sequence has `tokens`.
template <class A>
Panel<A> key_panel(Span<A> memory, Index tokens, Index columns) {
  return panel(memory.data, memory.size > 0 ? tokens : 0, columns);
}
/// Of [rows, key tokens].
template <class A>
Panel<A> key_columns(Span<A> memory, const Extents& e, Index rows, Index tokens) {
  return {memory.data, memory.size > 0 ? rows : 0, tokens, key_stride(e.key_tokens)};
}

inline Span<const BlockSpan> blocks_of(const BlockTable& table, const SequenceSpan& sequence) {
  return {table.blocks.data + sequence.first_block, sequence.blocks};
}

/// The tiles of a sequence.
inline Span<const TokenTile> tiles_of(const BlockTable& table, const SequenceSpan& sequence) {
  if (sequence.blocks == 0) return {};
  const BlockSpan& all = table.blocks[sequence.first_block];
  return {table.tiles.data + all.first_tile, all.tiles};
}

/// A unit at work on the quadratic path.
template <class L, class T>
struct QuadraticUnit {
  using A = Accumulator<T>;

  const Operands<L, T>& operands;
  const Unit<A>& unit;
  const Memory<A>& memory;
  Span<const TokenTile> query_tiles;
  Span<const TokenTile> key_tiles;
  Span<const BlockSpan> key_blocks;
  Index key_tokens;
  Span<const KeyRange> ranges;

  MHLA_ONCE_A_CALL QuadraticUnit(const Operands<L, T>& of, const Unit<A>& at)
      : operands(of),
        unit(at),
        memory(at.memory.quadratic),
        query_tiles(tiles_of(of.plan.tables.queries, at.queries)),
        key_tiles(tiles_of(of.plan.tables.keys, at.keys)),
        key_blocks(blocks_of(of.plan.tables.keys, at.keys)),
        key_tokens(tokens_of(key_blocks)),
        ranges{memory.ranges.data, cut_keys(key_blocks, memory.ranges)} {}

  const Extents& extents() const { return operands.plan.extents; }
  /// Whether denominators have features of their own: those before the rotation.
  bool unrotated_too() const { return normalizes<L> && operands.plan.rotation.rotates(); }
  MHLA_ONCE_A_CALL Weights<A, sight_of<L>> weights(Index matrix) const {
    return {blocks_of(operands.plan.tables.queries, unit.queries), key_blocks,
            unit_mixing(operands.plan, unit, matrix)};
  }
  Panel<A> keys_transposed() const {
    return key_columns(memory.keys_transposed, extents(), extents().feature_dim, key_tokens);
  }
  Panel<A> unrotated_transposed() const {
    return key_columns(memory.unrotated_transposed, extents(), extents().feature_dim, key_tokens);
  }
  MHLA_ONCE_A_CALL KeyPanels<A> key_panels(const Panel<const A>& values) const {
    return {ranges, keys_transposed(), unrotated_transposed(), values};
  }

  /// Packs a tile's features, and keeps them transposed.
  MHLA_ONCE_A_CALL void pack_keys(const TokenTile& tile, const FeaturePanels<A>& k,
                                  const RowBuffers<A>& row) const {
    pack_features(features_of(operands, A(1), operands.plan.tables.keys, tile),
                  key_rows(unit, operands.k), k, row);
    transpose<A>(keys_transposed().col_range(tile.offset, tile.tokens), k.rotated);
    if (unrotated_too())
      transpose<A>(unrotated_transposed().col_range(tile.offset, tile.tokens), k.features);
  }
};

}  // namespace cpu::quadratic

MHLA_NAMESPACE_END
